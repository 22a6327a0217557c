"""Pretraining on JAX from packed examples: its masks, and a run of a few steps."""

import gzip
import io
import json
import lzma
import os
import subprocess
import sys

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.corpora import Masking
from bertfam_tf.corpora.masking import word_edges
from bertfam_tf.metrics.minimal_pairs import read_minimal_pairs
from bertfam_tf.text import WordPieceTokenizer
from tests.selection import only_in

pytest.importorskip("jax")

WORDS = "the cat sat on a mat and dog ran ##s ##ing far away from house".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    file.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return WordPieceTokenizer(file)


@only_in("extended", "piece")
@pytest.mark.parametrize("unit", ["piece", "word"])
def test_masks_are_those_of_masking(tokenizer, unit):
    from tools.gpu_pretrain.masks import Masking as OnJax

    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 40, (64, 1))
    tokens = np.where(np.arange(40) < lengths, rng.integers(5, 20, (64, 40)), 0).astype("int32")
    tokens[:, 0] = 2
    real = (tokens != 0).astype("int32")
    seeds = np.stack([np.full(64, 3), np.arange(64)], 1).astype("int32")
    masking = Masking(tokenizer, 0.3, unit, max_predictions=8)
    expected = masking(tokens, real, seeds)
    starts, ends = word_edges(tokenizer)
    special = masking.is_special(np.arange(tokenizer.vocab_size)).numpy()
    settings = dict(unit=unit, rate=0.3, masked=0.8, random=0.1, max_predictions=8)
    vocabulary = dict(special=special, starts=starts, ends=ends)
    masked = OnJax(vocabulary, tokenizer.mask_id, settings)(tokens, real, seeds)
    width = expected.positions.shape[1]
    assert width > 4
    for name in masked._fields:
        actual = np.asarray(getattr(masked, name))
        actual = actual if name == "token_ids" else actual[:, :width]
        np.testing.assert_array_equal(actual, getattr(expected, name).numpy(), err_msg=name)


def test_packed_files_that_are_damaged(tmp_path):
    from tools.gpu_pretrain import packed

    file = tmp_path / "train.pack"
    packed.write(file, {"tokens": np.arange(100)}, {"length": 8})
    arrays, settings = packed.read(file)
    assert arrays["tokens"].tolist() == list(range(100))
    assert settings == {"length": 8}
    whole, strange = file.read_bytes(), io.BytesIO()
    np.savez(strange, settings=np.array([{}], object))
    contents = [b"", b"text", whole[:100], whole[:-4], lzma.compress(b"text")]
    contents += [lzma.compress(strange.getvalue())]
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"train\.pack has no packed examples"):
            packed.read(file)


@pytest.mark.extended
@pytest.mark.parametrize(("family", "objective"), [("bert", "mlm"), ("gpt2", "clm")])
def test_a_run_without_tensorflow(tokenizer, tmp_path, family, objective):
    text = "the cat sat on a mat\nand a dog ran far away\n\n" * 40
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text(text)
    tokenizer.save(tmp_path / "tokenizer")
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    with gzip.open(pairs / "order.jsonl.gz", "wt") as file:
        for _ in range(4):
            pair = {"sentence_good": "the cat sat", "sentence_bad": "cat sat the"}
            file.write(json.dumps(pair) + "\n")
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32}
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"family": family, "size": "tiny", "tokenizer": str(tmp_path / "tokenizer")},
        "data": {"format": "full_sentences", "length": 16},
        "objectives": {objective: 1.0},
        "train": {"batch_size": 8, "optimizer": "muon", "learning_rate": 0.01},
    }
    recipe["model"]["overrides"] = sizes
    for split in ("train", "dev"):
        recipe["data"][split] = [str(tmp_path / f"{split}.txt")]
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))

    def run(*arguments, **environment):
        command = [sys.executable, "-m", "tools.gpu_pretrain", *map(str, arguments)]
        subprocess.run(command, check=True, env={**os.environ, **environment})

    run("pack", tmp_path / "recipe.yaml", tmp_path / "pack.xz", "--blimp", pairs)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "tensorflow.py").write_text("raise ImportError('tensorflow is not here')\n")
    path = os.pathsep.join([str(blocked), os.environ.get("PYTHONPATH", os.getcwd())])
    output = tmp_path / "output"
    options = ("--steps", 150, "--evaluations", 2, "--pairs", 1)
    run("train", tmp_path / "pack.xz", output, *options, PYTHONPATH=path, JAX_PLATFORMS="cpu")
    rows = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert rows[1]["held_out"] < rows[0]["held_out"] < 3.1
    result = json.loads((output / "result.json").read_text())
    assert result["minimal_pairs"]["mean"] == 100.0
    shapes = json.loads((output / "weights.json").read_text())
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    assert sum(f.stat().st_size for f in output.glob("weights-*.bin")) < 1.75 * size

    run("assemble", tmp_path / "recipe.yaml", output, tmp_path / "task")
    task = bf.load(tmp_path / "task")
    assert bf.metrics.minimal_pairs(task, pairs, verbose=0)["mean"] == 1
    if objective == "clm":
        # All examples are the same, so that the model knows what comes next; at first it is 20.
        assert task.perplexity(["[CLS] the cat sat on a mat and a dog ran far away"]) < 2
    else:
        assert task.fill("the cat [MASK] on a mat")[0][0]["token"] == "sat"


def test_minimal_pairs_are_read_with_errors_that_name_the_line(tmp_path):
    (tmp_path / "order.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b"}\n{}\n')
    with pytest.raises(ValueError, match=r"order\.jsonl, line 2: expected a JSON object"):
        read_minimal_pairs(tmp_path)
    (tmp_path / "order.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b"}\n')
    assert read_minimal_pairs(tmp_path) == {"order": [("a", "b")]}
