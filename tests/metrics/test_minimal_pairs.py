"""Minimal pairs: files, scores by paradigm, and errors."""

import gzip
import json

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.metrics import minimal_pairs, read_minimal_pairs

PAIRS = {"agreement": [("a", "aaa"), ("aa", "aaaa"), ("b", "b")], "islands": [("aaa", "a")]}


class _ShortIsLikely:
    def log_likelihood(self, texts, batch_size):
        return -np.array([len(text) for text in texts], "float32")


def _write(folder, name, pairs, opened=open):
    with opened(folder / name, "wt") as file:
        for good, bad in pairs:
            file.write(json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n")


def test_fractions_by_paradigm(tmp_path):
    expected = {"agreement": 2 / 3, "islands": 0.0, "mean": 1 / 3}
    assert minimal_pairs(_ShortIsLikely(), PAIRS, verbose=0) == pytest.approx(expected)
    _write(tmp_path, "agreement.jsonl", PAIRS["agreement"])
    _write(tmp_path, "islands.jsonl.gz", PAIRS["islands"], gzip.open)
    assert read_minimal_pairs(tmp_path) == PAIRS
    assert minimal_pairs(_ShortIsLikely(), tmp_path, verbose=0) == pytest.approx(expected)


def test_goes_on_after_an_interruption(tmp_path):
    class Interrupted(_ShortIsLikely):
        def log_likelihood(self, texts, batch_size):
            if set(texts) == {"a", "aaa"}:
                raise KeyboardInterrupt
            return super().log_likelihood(texts, batch_size)

    file = tmp_path / "found.json"
    with pytest.raises(KeyboardInterrupt):
        minimal_pairs(Interrupted(), PAIRS, verbose=0, file=file)
    assert json.loads(file.read_text()) == {"agreement": pytest.approx(2 / 3)}
    # A paradigm that comes later is kept, too.
    file.write_text('{"islands": 0.5}')
    with pytest.raises(KeyboardInterrupt):
        minimal_pairs(Interrupted(), {**PAIRS, "last": [("a", "aaa")]}, verbose=0, file=file)
    assert json.loads(file.read_text()) == {"islands": 0.5, "agreement": pytest.approx(2 / 3)}
    file.write_text('{"agreement": 0.25}')
    found = minimal_pairs(_ShortIsLikely(), PAIRS, verbose=0, file=file)
    assert found == {"agreement": 0.25, "islands": 0.0, "mean": 0.125}
    file.write_text('{"agreement": "much"}')
    with pytest.raises(ValueError, match="must have a number for each paradigm"):
        minimal_pairs(_ShortIsLikely(), PAIRS, verbose=0, file=file)


def test_errors(tmp_path):
    with pytest.raises(TypeError, match=r"a MaskedLM or a CausalLM.*got a object"):
        minimal_pairs(object(), PAIRS)
    with pytest.raises(ValueError, match="at least one pair in each paradigm"):
        minimal_pairs(_ShortIsLikely(), {"empty": []})
    with pytest.raises(ValueError, match="has no files named"):
        read_minimal_pairs(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"sentence_good": "a"}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 1: expected a JSON object"):
        read_minimal_pairs(tmp_path)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"[" * 10_000, "line 1: expected a JSON object"),
        (b'{"sentence_good": "\\ud800", "sentence_bad": "a"}', "line 1: expected a JSON object"),
        (b'{"sentence_good": "\xff", "sentence_bad": "a"}', "line 1: expected a JSON object"),
        (b'{"sentence_good": "", "sentence_bad": "a"}', "line 1: sentences must be non-empty text"),
        (gzip.compress(b" " * (65 << 20)), "has a line of more than 64 MiB"),
        (gzip.compress(b"{}\n" * 100)[:-9], "cannot be decompressed|line 1"),
    ],
    ids=range(6),
)
def test_files_that_are_damaged(tmp_path, content, error):
    name = "bad.jsonl.gz" if content[:2] == b"\x1f\x8b" else "bad.jsonl"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}.*({error})"):
        read_minimal_pairs(tmp_path)


def test_two_files_of_one_paradigm(tmp_path):
    _write(tmp_path, "agreement.jsonl", PAIRS["agreement"])
    _write(tmp_path, "agreement.jsonl.gz", PAIRS["agreement"], gzip.open)
    with pytest.raises(ValueError, match="has several files of the paradigm agreement"):
        read_minimal_pairs(tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize("task_class", [bf.MaskedLM, bf.CausalLM])
def test_language_models(task_class, smallest):
    family = "bert" if task_class is bf.MaskedLM else "gpt2"
    tokenizer = bf.load_tokenizer(smallest)
    backbone = bf.build(family, "tiny", vocab_size=70, num_layers=1, max_positions=64)
    pairs = {"order": [("the film was good", "good the was film")]}
    found = minimal_pairs(task_class(backbone, tokenizer), pairs, verbose=0)
    assert found["mean"] == found["order"] in (0.0, 1.0)
