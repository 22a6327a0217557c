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


def _accuracies(file):
    stored = json.loads(file.read_text())["paradigms"]
    return {name: paradigm["accuracy"] for name, paradigm in stored.items()}


def test_goes_on_after_an_interruption(tmp_path):
    class Interrupted(_ShortIsLikely):
        def log_likelihood(self, texts, batch_size):
            if len(texts) > 2 or set(texts) == {"b", "bb"}:
                raise KeyboardInterrupt
            return super().log_likelihood(texts, batch_size)

    file = tmp_path / "scores.json"
    pairs = {"islands": [("aaa", "a")], "agreement": PAIRS["agreement"]}
    with pytest.raises(KeyboardInterrupt):
        minimal_pairs(Interrupted(), pairs, verbose=0, file=file)
    assert _accuracies(file) == {"islands": 0.0}
    # A paradigm that comes later is kept, too.
    file.write_text(file.read_text().replace('"accuracy": 0.0', '"accuracy": 0.5'))
    with pytest.raises(KeyboardInterrupt):
        minimal_pairs(Interrupted(), {"new": [("b", "bb")], **pairs}, verbose=0, file=file)
    expected = {"islands": 0.5, "agreement": pytest.approx(2 / 3)}
    assert minimal_pairs(_ShortIsLikely(), pairs, verbose=0, file=file).items() >= expected.items()
    assert _accuracies(file) == expected
    # Other pairs are scored, also under a known name.
    changed = {**pairs, "islands": [("a", "aaa")]}
    assert minimal_pairs(_ShortIsLikely(), changed, verbose=0, file=file)["islands"] == 1.0


def test_scores_of_another_model_are_refused(tmp_path):
    class Other(_ShortIsLikely):
        def log_likelihood(self, texts, batch_size):
            return 1.001 * super().log_likelihood(texts, batch_size)

    file = tmp_path / "scores.json"
    minimal_pairs(_ShortIsLikely(), PAIRS, verbose=0, file=file)
    before = file.read_text()
    with pytest.raises(ValueError, match=r"scores\.json has scores of another model"):
        minimal_pairs(Other(), PAIRS, verbose=0, file=file)
    assert file.read_text() == before


@pytest.mark.parametrize("content", [
    "[]", '{"agreement": 0.5}', '{"pair": ["a", "b"], "log_likelihoods": [1], "paradigms": {}}',
    '{"pair": ["a", "b"], "log_likelihoods": [1, 2], "paradigms": {"a": {"accuracy": "much"}}}',
    '{"pair": [1, 2], "log_likelihoods": [1, 2], "paradigms": {}}',
])  # fmt: skip
def test_other_files_are_refused(content, tmp_path):
    file = tmp_path / "scores.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"scores\.json has no scores of minimal pairs"):
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
