"""What a teacher computes once is what it computes in each step."""

import json
import shutil

import keras
import numpy as np
import pytest

from bertfam_tf.distill import (
    AttentionScores,
    Distiller,
    HiddenStates,
    LogitsError,
    Relations,
    SoftTargets,
)
from bertfam_tf.distill import cache as caching
from bertfam_tf.files import write
from bertfam_tf.tasks.fingerprint import fingerprint
from tests.distill.test_distiller import (
    ANSWERS,
    LABELS,
    QUESTIONS,
    TAGS,
    TEXTS,
    still,
    task_of,
)
from tests.selection import in_full, only_in

TERMS = [SoftTargets(), HiddenStates(), AttentionScores(), Relations()]
DATA = {"TextClassifier": LABELS, "TokenTagger": TAGS}


@pytest.fixture
def make(tokenizer):
    """A distiller whose student keeps its weights."""

    def made(task="TextClassifier", teacher=2, terms=TERMS):
        sides = task_of(tokenizer, 1, task), task_of(tokenizer, teacher, task)
        return still(Distiller(*sides, terms, labels=1.0))

    return made


@only_in("full", "TextClassifier")
@pytest.mark.parametrize(
    "task", ["TextClassifier", pytest.param("TokenTagger", marks=pytest.mark.full)]
)
def test_losses_are_those_of_each_step(task, make, tmp_path):
    distiller, y = make(task), DATA[task]
    options = dict(batch_size=3, verbose=0)
    plain = distiller.fit(TEXTS, y, **options).history
    first = distiller.fit(TEXTS, y, cache=tmp_path / "c", **options).history
    assert set(first) == set(plain)
    for name, (value,) in first.items():
        assert value == pytest.approx(plain[name][0], rel=2e-3), name


@pytest.mark.extended
def test_rows_are_shuffled_and_none_is_lost(make, tmp_path):
    cache = make(terms=[SoftTargets()]).cached(TEXTS, LABELS, None, tmp_path)
    assert cache.count == len(TEXTS)

    def rows(dataset):
        return [tuple(row[row > 0]) for x, *_ in dataset for row in x["token_ids"].numpy()]

    assert cache.dataset(3).options().autotune.enabled is False
    plain = rows(cache.dataset(3, shuffle=False))
    one, again, other = (rows(cache.dataset(3, seed=seed)) for seed in (0, 0, 1))
    assert one == again != other
    assert sorted(one) == sorted(other) == sorted(plain)


@pytest.mark.extended
def test_an_interrupted_pass_resumes(make, tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "_BATCHES_PER_SHARD", 1)
    monkeypatch.setattr("bertfam_tf.distill.distiller.BATCH", 2)
    distiller = make(terms=[SoftTargets()])
    distiller.cached(TEXTS, LABELS, None, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    card = json.loads((tmp_path / "part" / "card.json").read_text())
    del card["rows"]
    (tmp_path / "part" / "card.json").unlink()
    write(tmp_path / "part" / "job.json", json.dumps(card))
    for number in range(2):
        write(tmp_path / "part" / f"counts-{number:05}.json", "2")
    for number in range(2, 4):
        (tmp_path / "part" / f"rows-{number:05}.tfrecord").unlink()
    distiller.cached(TEXTS, LABELS, None, tmp_path / "part")
    files = sorted(path.name for path in (tmp_path / "whole").glob("*.*"))
    assert len(files) == 5
    for name in files:
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.full
def test_other_teachers_terms_and_texts_are_refused(make, tmp_path):
    make(terms=[SoftTargets()]).cached(TEXTS, LABELS, None, tmp_path)
    with pytest.raises(ValueError, match=r"other settings .*teacher_sha256 is .*, expected"):
        make(teacher=3, terms=[SoftTargets()]).cached(TEXTS, LABELS, None, tmp_path)
    with pytest.raises(ValueError, match=r"outputs is .*task.*expected .*hidden_states"):
        make().cached(TEXTS, LABELS, None, tmp_path)
    with pytest.raises(ValueError, match="data_sha256 is"):
        make(terms=[SoftTargets()]).cached(TEXTS, LABELS[::-1], None, tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("x")
    with pytest.raises(ValueError, match="contains notes, and nothing"):
        make(terms=[SoftTargets()]).cached(TEXTS, LABELS, None, tmp_path / "other")


def test_a_teachers_sha256_depends_on_its_weights(tokenizer):
    task = task_of(tokenizer, 1)
    before = fingerprint(task)
    assert before == fingerprint(task)
    weight = task.backbone.weights[-1]
    weight.assign(weight + 1e-3)
    assert fingerprint(task) != before


def test_masks_that_are_drawn_anew(tokenizer, tmp_path):
    sides = (task_of(tokenizer, n, "MaskedLM") for n in (1, 2))
    distiller = Distiller(*sides, [SoftTargets()])
    distiller.compile(keras.optimizers.SGD(0.0))
    with pytest.raises(ValueError, match="cannot be cached for a MaskedLM, which draws"):
        distiller.fit(TEXTS, cache=tmp_path)


def test_large_values_are_finite():
    values = caching.halved(np.array([-1e9, 1e9, 0.5], "float32")).numpy()
    assert values.dtype == np.float16
    assert np.isfinite(values).all()
    assert values[2] == 0.5


@pytest.mark.extended
@pytest.mark.parametrize("task", in_full(["TextRegressor", "SpanQA"], ["TextRegressor"]))
def test_labels_and_logits_are_not_rounded(task, tokenizer, tmp_path):
    """Scores beyond half precision, and the logits of padding in span QA, which are masks."""
    data = (QUESTIONS, ANSWERS) if task == "SpanQA" else (TEXTS, [i * 12345.6 for i in range(8)])
    student, teacher = (task_of(tokenizer, number, task) for number in (1, 2))
    if task == "TextRegressor":
        teacher.head.weights[-1].assign([123456.7])
    distiller = still(Distiller(student, teacher, [LogitsError()], labels=1.0))
    plain = distiller.fit(*data, batch_size=8, verbose=0).history
    found = distiller.fit(*data, batch_size=8, verbose=0, cache=tmp_path).history
    for name, (value,) in found.items():
        assert value == pytest.approx(plain[name][0], rel=1e-5), name
