"""Choices: against the head on rows packed by hand, learning, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.export.runtime import load
from bertfam_tf.text import load_tokenizer
from tests.selection import WIRINGS, in_full, only_in

TEXTS = ["the film was very good", "", "a dull story , unhappy cast", "it is short !", "we play"]
QUESTIONS = ["was it good ?", "the plot", "", "is it", "they"]
CHOICES = [
    ["good", "bad", "the film was very very long and the cast was great"],
    ["", "short", "long"],
    ["acting", "playing", "play"],
    ["bad", "bad", "bad film"],
    ["you", "it", "the movie"],
]
ROWS = {"text": TEXTS, "choices": CHOICES}
HOSTILE = {
    "text": [b"\xff good \xc3", "good " * 3000, "x" * 10_000, "🙂 日本語"],
    "choices": [[b"\xc3", ""], ["bad " * 900, "x" * 10_000], ["🙂", "[SEP]"], ["\0", " \t"]],
}
# Whose token ids are packed by hand.
FAMILIES = [
    name
    for name in bf.families()
    if "choice" in registry.get(name).heads and registry.get(name).tokenizer.kind != "characters"
]
slices = tf.data.Dataset.from_tensor_slices


@pytest.fixture(scope="module")
def task(smallest):
    return _task(smallest)


def _task(path, num_choices=3, **options):
    quiet = dict(dropout=0.0, attention_dropout=0.0)
    task = bf.MultipleChoice.from_pretrained(path, num_choices, **{**quiet, **options})
    for variable in task.head.weights:
        variable.assign_add(np.random.default_rng(0).normal(0, 0.3, variable.shape))
    return task


def _expected(task, texts, choices, questions=None):
    """Logits of each row, packed by hand and run alone."""
    ids = task.tokenizer.special_ids
    rows = []
    for i, (text, of_row) in enumerate(zip(texts, choices, strict=True)):
        logits = []
        for choice in of_row:
            second = choice if questions is None else f"{questions[i]} {choice}"
            a, b = (task.tokenizer.tokenize(t).numpy().tolist() for t in (text, second))
            a = a[: max(task.max_length - 3 - len(b), 0)]
            tokens = [ids["cls"], *a, ids["sep"], *b, ids["sep"]]
            given = {
                "token_ids": np.array([tokens], "int32"),
                "padding_mask": np.ones((1, len(tokens)), "int32"),
                "segment_ids": np.array([[0] * (len(a) + 2) + [1] * (len(b) + 1)], "int32"),
            }
            given |= {"language_ids": np.zeros_like(given["token_ids"])}
            outputs = task.backbone(given, training=False)
            logits.append(float(task.head(outputs, training=False)[0]))
        rows.append(logits)
    return np.array(rows)


def _check(task, answers, rows, questions=None):
    expected = tf.nn.softmax(_expected(task, rows["text"], rows["choices"], questions)).numpy()
    assert np.ptp(expected, axis=1).max() > 1e-3
    np.testing.assert_allclose([a["scores"] for a in answers], expected, atol=2e-5)
    for answer, scores, choices in zip(answers, expected, rows["choices"], strict=True):
        assert type(answer["choice"]) is int
        assert scores[answer["choice"]] == pytest.approx(scores.max(), abs=2e-5)
        assert answer["text"] == choices[answer["choice"]]
        assert answer["scores"].dtype == np.float32


@only_in("full", "2")
@pytest.mark.parametrize("batch_size", in_full([1, 2, 32], [2]))
def test_scores_are_the_head_s_on_rows_packed_by_hand(task, batch_size):
    _check(task, task.predict(ROWS, batch_size=batch_size), ROWS)


@pytest.mark.extended
def test_a_question_stands_before_each_choice(smallest):
    task = _task(smallest)
    rows = {**ROWS, "question": QUESTIONS}
    _check(task, task.predict(rows), ROWS, QUESTIONS)
    assert task.pair
    with pytest.raises(ValueError, match="takes examples with 'question'; the data has no"):
        task.predict(ROWS)


@pytest.mark.full
def test_the_text_is_cut_and_the_choices_are_not(smallest):
    task = _task(smallest, max_length=16)
    rows = {"text": ["the film was very good " * 9] * 2, "choices": [CHOICES[0], CHOICES[1]]}
    _check(task, task.predict(rows), rows)
    inputs = task.preprocess({k: tf.constant(v) for k, v in rows.items()})
    assert inputs["token_ids"].shape == (2, 3, 16)


@pytest.fixture(scope="module")
def tokenizer(smallest):
    return load_tokenizer(smallest)


@pytest.mark.full
@pytest.mark.parametrize("family", in_full(FAMILIES, WIRINGS))
def test_every_family_with_the_head(family, tokenizer):
    shape = dict(vocab_size=70, num_layers=1, max_positions=64, num_languages=1)
    shape |= dict(dropout=0.0, attention_dropout=0.0)
    known = registry.get(family).config.__dataclass_fields__
    backbone = bf.build(family, "tiny", **{k: v for k, v in shape.items() if k in known})
    language = 0 if "language_ids" in backbone.input else None
    task = bf.MultipleChoice(backbone, tokenizer, 3, language_id=language)
    for i, variable in enumerate(task.weights):
        variable.assign_add(np.random.default_rng(i).normal(0, 0.2, variable.shape))
    rows = {name: values[:1] for name, values in ROWS.items()}
    answer = task.answer({name: tf.constant(values) for name, values in rows.items()})
    _check(task, task._parts.to_python(answer, {}), rows)


@pytest.mark.extended
def test_shapes(task):
    wanted = [a["scores"] for a in task.predict(ROWS)]
    for x in (
        (TEXTS, CHOICES),
        slices(((TEXTS, CHOICES), [0] * 5)),
        slices(ROWS).batch(2),
        slices((ROWS, [0] * 5)),
        slices({**ROWS, "label": ["A"] * 5}),
        slices(ROWS).filter(lambda _: True).batch(3),
    ):
        np.testing.assert_allclose([a["scores"] for a in task.predict(x)], wanted, atol=2e-6)


@pytest.mark.full
def test_hostile_texts(smallest):
    task = _task(smallest, 2, max_length=20)
    answers = task.predict(HOSTILE, batch_size=3)
    assert len(answers) == 4
    alone = [
        task.predict({name: values[i : i + 1] for name, values in HOSTILE.items()})[0]
        for i in range(4)
    ]
    for answer, other in zip(answers, alone, strict=True):
        assert np.isfinite(answer["scores"]).all()
        np.testing.assert_allclose(answer["scores"], other["scores"], atol=2e-6)
        assert answer["text"] == other["text"]


@pytest.mark.full
def test_learns_saves_and_exports(smallest, tmp_path):
    task = _task(smallest)
    texts = ["the film", "a movie", "the plot", "the story", "we", "they", "you", "it"]
    choices = [["good", "bad", "long"], ["bad", "good", "long"], ["long", "bad", "good"]]
    rows = {"text": texts, "choices": [choices[i % 3] for i in range(8)]}
    letters = ["ABC"[i % 3] for i in range(8)]
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(slices((rows, letters)).batch(3).repeat(20), verbose=0)
    assert task.evaluate(rows, letters, verbose=0, return_dict=True)["accuracy"] == 1
    assert [a["text"] for a in task.predict(rows)] == ["good"] * 8
    weights = np.arange(8, dtype="float32")
    found = task.evaluate(rows, [str(i % 3) for i in range(8)], sample_weight=weights, verbose=0)
    scores = np.array([a["scores"] for a in task.predict(rows)])
    chances = scores[range(8), [i % 3 for i in range(8)]]
    # Of chances so near 1, float32 keeps two or three digits.
    assert found[0] == pytest.approx(np.mean(-np.log(chances) * weights), rel=0.02)

    task.save(tmp_path / "saved")
    again = bf.load(tmp_path / "saved")
    assert (again.num_choices, again.pair, again.truncation) == (3, False, "only_first")
    np.testing.assert_array_equal([a["scores"] for a in again.predict(rows)], scores)

    servable = load(task.export(tmp_path / "export"))
    given = {name: np.array(_encoded(ROWS[name]), object) for name in ("text", "choices")}
    answer = servable.run("", given)
    wanted = task.predict(ROWS)
    np.testing.assert_allclose(answer["scores"], [a["scores"] for a in wanted], atol=1e-5)
    assert answer["choice"].tolist() == [a["choice"] for a in wanted]
    assert [text.decode() for text in answer["text"]] == [a["text"] for a in wanted]


def _encoded(values):
    return [v.encode() if isinstance(v, str) else _encoded(v) for v in values]


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (
            {"text": TEXTS, "choices": [c[:2] for c in CHOICES]},
            "Each example must have 3 choices, got 2",
        ),
        (
            slices(((TEXTS, [c[:2] for c in CHOICES]), [0] * 5)),
            "Each example must have 3 choices, got 2",
        ),
        (
            {"text": TEXTS, "choices": [CHOICES[0][:2], *CHOICES[1:]]},
            r"number of strings, got \[2, 3\]",
        ),
        ({"text": TEXTS, "choices": TEXTS}, r"choices must have the shape \(examples, choices\)"),
        ({"text": TEXTS}, "Features must be 'text' and 'choices' and optionally 'question', got"),
        (TEXTS, "Features must be 'text' and 'choices'"),
        (
            {**ROWS, "question": QUESTIONS},
            "takes examples without 'question'; the data has a 'question'",
        ),
        (slices(ROWS).filter(lambda _: False), "There is no text"),
    ],
    ids=range(8),
)
def test_other_data_is_refused(task, x, error):
    task.pair = False
    with pytest.raises(ValueError, match=error):
        task.predict(x)


def test_choices_of_unknown_number_are_counted_at_run_time(task):
    signature = {
        "text": tf.TensorSpec([None], tf.string),
        "choices": tf.TensorSpec([None, None], tf.string),
    }
    rows = {name: tf.constant(values) for name, values in ROWS.items()}
    data = tf.data.Dataset.from_generator(lambda: [rows], output_signature=signature)
    assert len(task.predict(data)) == 5
    rows["choices"] = rows["choices"][:, :2]
    with pytest.raises(ValueError, match=r"^Each example must have 3 choices, got 2\.$"):
        task.predict(data)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (None, "No labels were given"),
        (["A", "B", "C", "D", "A"], "The label 'D' is not one of: 0, 1, 2, A, B, C"),
        ([0, 1, 2, 3, 0], "The label '3' is not one of"),
        ([[0]] * 5, "labels must be a vector"),
        ([0.0] * 5, "The label '0.0' is not one of"),
    ],
)
def test_other_labels_are_refused(task, labels, error):
    with pytest.raises(ValueError, match=error):
        task.evaluate(ROWS, labels, verbose=0)
    if labels is not None and labels[0] == "A":
        with pytest.raises(ValueError, match=error):
            task.evaluate(slices((ROWS, labels)), verbose=0)


def test_other_arguments_are_refused(smallest):
    with pytest.raises(ValueError, match="num_choices must be at least 2, got 1"):
        bf.MultipleChoice.from_pretrained(smallest, 1)
    with pytest.raises(TypeError, match="unexpected keyword"):
        _task(smallest).predict(ROWS, batchsize=2)
