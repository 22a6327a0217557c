"""Recipes against the reference in ``tests.support``: each step has the same loss."""

import csv
import json
import re
import shutil
import sys
import tarfile

import pytest
import yaml

from bertfam_tf.cli import main
from bertfam_tf.recipes import read_split
from bertfam_tf.recipes.reading import load_recipe
from tests.recipes.test_tasks import CASES, SQUAD

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.support import finetune_reference  # noqa: E402

pytestmark = pytest.mark.live

_TSV = "text\tlabel\na good film\tgood\nbad plot , i was unhappy\tbad\nit is short\tgood\n"
# Of two windows, the last one short, beside contexts of one: padding of every kind.
_LONG = {
    "context": "a good film and a bad plot . " * 3,
    "qas": [
        {"id": "3", "question": "what is bad", "answers": [{"text": "plot", "answer_start": 22}]}
    ],
}
_SQUAD = {"data": [*SQUAD["data"], {"paragraphs": [_LONG]}]}
_STEPS, _RATE, _TOLERANCE = 8, 5e-3, 2e-5
# Each task's file, and what the reference calls its class.
_CASES = {
    "TextClassifier": (("t.tsv", _TSV, {}), "SequenceClassification"),
    "TextRegressor": (CASES["TextRegressor"], "SequenceClassification"),
    "TokenTagger": (CASES["TokenTagger"], "TokenClassification"),
    "SpanQA": (("t.json", json.dumps(_SQUAD), {}), "QuestionAnswering"),
    "MultipleChoice": (CASES["MultipleChoice"], "MultipleChoice"),
}
_LABELS = {
    "TextClassifier": ["bad", "good"],
    "TextRegressor": ["0"],
    "TokenTagger": ["B-X", "O"],
    "SpanQA": ["start", "end"],
}


@pytest.mark.parametrize("task", _CASES)
def test_losses_of_a_recipe(task, tiny, tmp_path, capsys, monkeypatch):
    (name, content, data), of = _CASES[task]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).write_text(content)
    rows = str(folder if task == "MultipleChoice" else folder / name)
    labels = dict(enumerate(_LABELS[task])) if task in _LABELS else {}
    options = {"id2label": labels} if labels else {}
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{of}").from_pretrained(
        tiny,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        ignore_mismatched_sizes=True,
        **options,
    )
    model.save_pretrained(tmp_path / "checkpoint")
    shutil.copy(tiny / "vocab.txt", tmp_path / "checkpoint")
    # All examples are one batch, so their order makes no difference.
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(tmp_path / "checkpoint"), "max_length": 24},
        "task": task,
        "data": {"train": rows, "dev": rows, **data},
        "train": {"epochs": _STEPS, "batch_size": 8, "learning_rate": _RATE, "epsilon": 1e-3},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))

    assert main(["train", str(file)]) == 0
    with (tmp_path / "run" / "history.csv").open() as stream:
        ours = [float(row["loss"]) for row in csv.DictReader(stream)]
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["", str(file)])
    finetune_reference.main()
    theirs = [float(x) for x in re.findall(r"mean loss (\S+)", capsys.readouterr().out)]
    assert len(theirs) == _STEPS
    assert theirs[-1] < 0.9 * theirs[0]
    assert ours == pytest.approx(theirs, rel=_TOLERANCE)
    print(json.dumps({task: max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))}))


def test_rows_of_an_archive(tmp_path):
    """Examples come in its order, not that of names: ``limit`` takes the first (RACE has one)."""
    passages = {
        name: {"article": name, "questions": ["who?", "why?"], "options": [["a", "b"]] * 2}
        | {"answers": ["B", "A"]}
        for name in "cab"
    }
    for name, passage in passages.items():
        (tmp_path / f"{name}.txt").write_text(json.dumps(passage))
    with tarfile.open(tmp_path / "race.tar.gz", "w:gz") as archive:
        for name in passages:
            archive.add(tmp_path / f"{name}.txt", f"RACE/train/middle/{name}.txt")
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"path": "nowhere"},
        "task": "MultipleChoice",
        "data": {"train": str(tmp_path / "race.tar.gz" / "train"), "limit": 3},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    data = load_recipe(tmp_path / "recipe.yaml").data

    rows = read_split(data, "train", "MultipleChoice").as_numpy_iterator()
    ours = [
        (x["text"].decode(), x["question"].decode(), [c.decode() for c in x["choices"]], int(y))
        for x, y in rows
    ]
    assert [text for text, *_ in ours] == ["c", "c", "a"]
    assert finetune_reference.read_questions(data, "train") == ours
