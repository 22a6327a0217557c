"""Every family on another of Keras' backends, in a process that has no TensorFlow."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.live
CODE = """
import sys
sys.modules["tensorflow"] = None
import numpy as np
import bertfam_tf as bf
from bertfam_tf import heads
from tests.tokens import as_read
tokens = np.array([[5, 6, 7]], "int32")
for family in bf.families():
    more = {"num_languages": 1} if family == "xlm" else {}
    backbone = bf.build(family, "tiny", vocab_size=40, num_layers=1, **more)
    given = as_read(backbone, tokens)
    outputs = backbone({"token_ids": given, "padding_mask": np.ones_like(tokens)})
    print(family, *heads.build(backbone, "sequence", 3)(outputs).shape)
"""


def test_every_family_runs_on_torch():
    import bertfam_tf as bf

    run = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"{family} 1 3" for family in bf.families()]
