"""Weights that oneDNN packs: how often, by its own log. Times are not measured."""

import os
import re
import subprocess
import sys

import pytest

import bertfam_tf as bf
from bertfam_tf.text import load_tokenizer

_CODE = """
import sys
import numpy as np
from bertfam_tf.export import runtime

servable = runtime.load(sys.argv[1])
for rows in map(int, sys.argv[2:]):
    print("request", rows, flush=True)
    for _ in range(3):
        servable.run("", {"text": np.array([b"good film " * 4] * rows, object)})
        sys.stdout.flush()
"""
# Of a weight matrix into blocks, such as ``…,src:f32::blocked:ab::f0 dst:f32::blocked:BA16a16b…``.
_PACKING = re.compile(r"onednn_verbose,.*,reorder,.*dst:\w+:\w*:blocked:[a-zA-Z]*\d.*,(\d+x\d+),")


def _packings(export, sequence):
    """Loads an export and runs requests of these numbers of rows; the packed matrices of each."""
    environment = {
        **os.environ,
        "ONEDNN_VERBOSE": "1",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-c", _CODE, str(export), *map(str, sequence)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    parts = run.stdout.split("request ")
    if not any(",matmul," in part or ",inner_product," in part for part in parts):
        pytest.skip("This TensorFlow does not log oneDNN's operations.")
    return [len(_PACKING.findall(part)) for part in parts]


@pytest.mark.full
def test_nothing_is_packed_after_the_warm_up(smallest, tmp_path):
    """A product keeps the order for its first call: one text has products of its own, and the batch
    of the warm-up has as many tokens as most batches."""
    shape = dict(hidden_size=64, num_heads=4, intermediate_size=256, num_layers=2)
    tokenizer = load_tokenizer(smallest)
    backbone = bf.build("bert", "tiny", vocab_size=tokenizer.vocab_size, **shape)
    task = bf.TextClassifier(backbone, tokenizer, labels=["a", "b"], pair=False)
    export = task.export(tmp_path)
    while_loading, *counts = _packings(export, [16, 1, 64, 1, 24])
    assert while_loading > 0  # otherwise nothing is packed, and this tests nothing
    assert counts == [0] * 5
