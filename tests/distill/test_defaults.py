"""Distillation as users call it: 40 examples of many lengths, in shuffled batches of 32 and 8."""

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.distill import (
    Distiller,
    FirstTokens,
    HiddenStates,
    LogitsError,
    SoftTargets,
    student_of,
)
from bertfam_tf.models.base import plain_weights
from bertfam_tf.training.tuning import add_lora
from tests.distill.conftest import PIECES
from tests.distill.test_distiller import still, task_of
from tests.selection import in_full

_RANDOM = np.random.default_rng(0)
WORDS = [_RANDOM.choice(PIECES[5:10], count).tolist() for count in _RANDOM.integers(1, 13, 40)]
TEXTS = [" ".join(words) for words in WORDS]
LABELS = _RANDOM.choice(["no", "yes"], 40).tolist()
TAGS = [_RANDOM.choice(["O", "B"], len(words)).tolist() for words in WORDS]
DATA = {
    "TextClassifier": (TEXTS, LABELS),
    "TokenTagger": (WORDS, TAGS),
    "SpanQA": (
        {"question": [words[0] for words in WORDS], "context": TEXTS},
        {
            "answer": [words[-1] for words in WORDS],
            "answer_start": [len(text) - len(text.split()[-1]) for text in TEXTS],
        },
    ),
}
TERMS = [
    SoftTargets(),
    SoftTargets(name="cross_entropy", divergence="cross_entropy"),
    LogitsError(),
    HiddenStates(),
]


@pytest.mark.extended
@pytest.mark.parametrize("task", in_full(DATA, ["SpanQA"]))
def test_cached_outputs_of_several_batches(task, tokenizer, tmp_path):
    """Rows of a batch of training were computed in batches that had other lengths."""
    distiller = still(
        Distiller(task_of(tokenizer, 1, task), task_of(tokenizer, 2, task), TERMS, 1.0)
    )
    plain = distiller.fit(*DATA[task], verbose=0).history
    cached = distiller.fit(*DATA[task], cache=tmp_path / "cache", verbose=0).history
    assert cached.keys() == plain.keys()
    for name, (value,) in cached.items():
        assert value == pytest.approx(plain[name][0], rel=2e-3), name


def _states(task):
    """The outputs of all layers at the first token, of each text alone: (texts, layers, width)."""
    found = []
    for text in TEXTS:
        states = task.backbone(task.preprocess({"text": [text]}), outputs="hidden_states")
        found.append([np.array(each)[0, 0] for each in states["hidden_states"]])
    return np.array(found)


@pytest.mark.full
def test_first_tokens_skip_the_last_layer(tokenizer):
    """The student's first layer of two imitates the second of four, its last none."""
    student, teacher = task_of(tokenizer, 2), task_of(tokenizer, 4)
    distiller = still(Distiller(student, teacher, [FirstTokens()]))
    assert distiller.terms[0].layers == {1: 2}
    found = distiller.fit(TEXTS, verbose=0).history["first_tokens"]
    a, b = _states(student)[:, 1], _states(teacher)[:, 2]
    a, b = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (a, b))
    assert found[0] == pytest.approx(np.mean((a - b) ** 2), rel=1e-4)
    with pytest.raises(ValueError, match="layer map of first_tokens is empty for 1 layers"):
        Distiller(task_of(tokenizer, 1), teacher, [FirstTokens()])


def test_a_student_of_nothing_chosen_is_the_teacher(tokenizer):
    teacher = task_of(tokenizer, 3)
    student = student_of(teacher)
    assert student.backbone is not teacher.backbone
    for one, other in zip(student.weights, teacher.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("family", ["bert", "tinybert"])
def test_a_student_of_a_teacher_with_lora(tokenizer, family):
    """It starts with the updates, also one of another family, whose layers are copied whole."""
    teacher = task_of(tokenizer, 2)
    add_lora(teacher.backbone, 2)
    for i, variable in enumerate(teacher.backbone.trainable_variables):
        noise = np.random.default_rng(i).normal(0, 0.3, variable.shape)
        variable.assign_add(noise.astype("float32"))
    student = student_of(teacher, family=family)
    values = plain_weights(teacher)
    for variable in student.weights:
        np.testing.assert_array_equal(variable, values[variable.path])


class _Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return WORDS[rows], TAGS[rows]


@pytest.mark.full
def test_batches_of_words_are_read_as_fit_of_the_task_reads_them(tokenizer):
    """Of a ``PyDataset``, by a distiller and by several tasks."""
    distiller = still(
        Distiller(*(task_of(tokenizer, n, "TokenTagger") for n in (1, 2)), [SoftTargets()], 1.0)
    )
    plain = distiller.fit(WORDS, TAGS, verbose=0).history
    found = distiller.fit(_Batches(workers=1), verbose=0).history
    assert {n: x[0] for n, x in found.items()} == pytest.approx(
        {n: x[0] for n, x in plain.items()}, rel=1e-4
    )
    tagger = task_of(tokenizer, 1, "TokenTagger")
    tasks = {"tags": tagger, "film": bf.TextClassifier(tagger.backbone, tokenizer, ["no", "yes"])}
    model = bf.MultiTask(tasks)
    data = {"tags": _Batches(workers=1), "film": (TEXTS, LABELS)}
    batches = [inputs["tags"]["token_ids"] for inputs, _ in model.text_batches(data)]
    assert sorted(len(ids) for ids in batches) == [0, 0] + [8] * 5
