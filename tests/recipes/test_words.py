"""ELMo from a recipe: from text to a directory that tasks start from; killed and resumed."""

import json

import numpy as np
import pytest
import yaml

import bertfam_tf as bf
from bertfam_tf.checkpoints import safetensors
from bertfam_tf.cli import main
from bertfam_tf.training.callbacks.backup import Backup

TEXT = "the cat sat on the mat .\nthe dog sat .\n\na cat and a dog\nthe mat\n" * 3


@pytest.fixture
def recipe(tmp_path):
    """A recipe in a file."""
    (tmp_path / "text.txt").write_text(TEXT)
    values = {
        "output": str(tmp_path / "run"),
        "model": {
            "family": "elmo",
            "size": "tiny",
            "tokenizer": "characters",
            "overrides": {"filter_counts": [4, 4, 8], "hidden_size": 16, "cell_size": 16},
        },
        "data": {
            "train": [str(tmp_path / "*.txt")],
            "dev": [str(tmp_path / "text.txt")],
            "format": "sentences",
            "length": 8,
            "words": 5,
        },
        "objectives": {"bilm": 1.0},
        "train": {"epochs": 2, "batch_size": 4, "learning_rate": 0.02, "backup_steps": 2},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


class Killed(BaseException):
    """What no code handles."""


@pytest.mark.extended
def test_a_run_and_one_that_was_killed(recipe, tmp_path, capsys, monkeypatch):
    assert main(["pretrain", str(recipe)]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    # 12 sentences.
    assert (metrics["examples"], metrics["steps"]) == (12, 6)
    history = np.genfromtxt(tmp_path / "run" / "history.csv", delimiter=",", names=True)
    assert history["val_bidirectional_lm_perplexity"][-1] < 8
    words = (tmp_path / "run" / "words.txt").read_text().splitlines()
    assert words == ["<S>", "</S>", "<UNK>", "the", ".", "a", "cat", "dog"]

    original, steps = Backup.on_train_batch_end, []

    def end(self, batch, logs=None):
        original(self, batch, logs)
        steps.append(self.batches)
        if steps == [1, 2, 3, 4, 5]:
            raise Killed

    output = f"output={tmp_path / 'again'}"
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_train_batch_end", end)
        with pytest.raises(Killed):
            main(["pretrain", str(recipe), output])
        assert main(["pretrain", str(recipe), output]) == 0
    assert steps == [1, 2, 3, 4, 5, 5, 6]
    first, second = (tmp_path / name / "model" for name in ("run", "again"))
    for name in ("model.safetensors", "pretraining_heads.safetensors"):
        one, other = (safetensors.read_file(path / name) for path in (first, second))
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])
    # Tasks start from it, and so does further pretraining.
    tagger = bf.TokenTagger.from_pretrained(first, tags=["O", "X"])
    assert len(tagger.predict(["the cat sat"])) == 1
    further = [f"model.checkpoint={first}", f"output={tmp_path / 'further'}"]
    assert main(["pretrain", str(recipe), *further, "train.learning_rate=1e-30"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["loss"] == pytest.approx(metrics["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("objectives={mlm: 1.0}", "objectives must be bilm for data.format sentences, got mlm"),
        ("data.format=full_sentences; data.words=100000", "bilm needs data.format: sentences"),
        ("model.tokenizer={}", "model.tokenizer must be characters, or a directory with a Charac"),
        ("data.words=0", "data.words must be at least 1"),
        (
            "data.end=</s>",
            "data.end must be null or omitted unless data.format is stream, got '</s>'",
        ),
        ("masking.rate=0.5", "masking must be empty for data.format sentences"),
    ],
)
def test_mistakes_are_named(recipe, override, error, tmp_path, capsys):
    if override.startswith("model.tokenizer"):
        words = ["vocabulary", "words", "--input", str(tmp_path / "text.txt")]
        assert main([*words, "--output", str(tmp_path / "words")]) == 0
        override = override.format(tmp_path / "words")
    assert main(["pretrain", str(recipe), *override.split("; ")]) == 2
    assert error in capsys.readouterr().err
