"""A text's answer does not depend on the other texts of its batch, whatever they contain."""

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.export.runtime import load

TEXTS = ["the film was good in Paris", "it was dull", "a"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
HARMLESS = ["a good film", "it is a plot of the film"]
HOSTILE = [
    "",
    " ",
    "a\0b",
    "x" * 3000,
    "a " * 300,
    "\u0301\u0327" * 100,
    "日本語" * 100,
    "[CLS] [SEP] [MASK] </s> " * 20,
    "🙂" * 50,
    "\u202e abc \u200b",
    "#" * 900,
]
# The most that a score may move with the shape of a batch, in which sums have another order.
LARGEST = {"float32": 1e-5, "mixed_bfloat16": 0.03, "bfloat16": 0.03}


def _tagger(smallest, dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        task = bf.TokenTagger.from_pretrained(smallest, TAGS, max_length=24)
    finally:
        keras.config.set_dtype_policy(before)
    for i, variable in enumerate(task.weights):
        if "seed" not in variable.path:
            noise = np.random.default_rng(i).normal(0, 0.3, variable.shape)
            variable.assign(keras.ops.cast(variable, "float32") + noise.astype("float32"))
    return task


def _batches(neighbours):
    """Batches of one size, with the texts in other places."""
    random = np.random.default_rng(0)
    for _ in range(4):
        batch = [*TEXTS, *random.choice(neighbours, 5)]
        order = random.permutation(len(batch))
        yield [batch[i] for i in order], [int(np.flatnonzero(order == i)[0]) for i in range(3)]


def _answers(run, texts):
    """The words, tags, scores and offsets of each text."""
    found = {name: np.array(values) for name, values in run(texts).items()}
    columns = (found["tokens"], found["tags"], found["scores"], found["offsets"])
    return [[column[i][:count] for column in columns] for i, count in enumerate(found["count"])]


def _run_of(task):
    return lambda texts: task.answer({"text": keras.ops.convert_to_tensor(texts)})


def _served(path):
    model = load(path)
    return lambda texts: model.run("", {"text": np.array([x.encode() for x in texts], object)})


def _check(run, dtype):
    """Compares texts alone and beside hostile ones; returns the most that a score moved."""
    alone = [_answers(run, [text])[0] for text in TEXTS]
    moved = 0.0
    for texts, places in _batches(HOSTILE):
        answers = _answers(run, texts)
        for expected, place in zip(alone, places, strict=True):
            words, tags, scores, offsets = answers[place]
            assert words.tolist() == expected[0].tolist()
            assert offsets.tolist() == expected[3].tolist()
            assert len(scores) > 0
            moved = max(moved, np.abs(scores - expected[2]).max())
            assert np.all(np.abs(scores - expected[2]) < LARGEST[dtype])
            # Rounding decides between two tags that are about as likely.
            assert np.all((tags == expected[1]) | (scores < 0.5 + LARGEST[dtype]))
    return moved


@pytest.mark.extended
@pytest.mark.parametrize("dtype", LARGEST)
def test_answers_of_a_tagger(smallest, tmp_path, dtype):
    task = _tagger(smallest, dtype)
    assert task.backbone.dtype_policy.name == dtype
    served = _served(task.export(tmp_path, max_tokens=40))
    print(dtype, _check(_run_of(task), dtype), _check(served, dtype))


@pytest.mark.full
@pytest.mark.parametrize("stored", ["bfloat16", "int8-weights"])
def test_answers_of_a_tagger_with_smaller_weights(smallest, tmp_path, stored):
    task = _tagger(smallest, "float32")
    served = _served(task.export(tmp_path, dtype=stored, max_tokens=40))
    print(stored, _check(served, "float32"))


@pytest.mark.full
@pytest.mark.parametrize("dtype", LARGEST)
def test_contents_of_neighbours_change_nothing(smallest, dtype):
    """In batches of one shape, scores are equal to the last bit."""
    task = _tagger(smallest, dtype)

    def scores(neighbours):
        texts = [TEXTS[0], "a " * 300, *neighbours]
        return _answers(_run_of(task), texts)[0][2]

    expected = scores(["a b", "a b"])
    for neighbours in (["", ""], ["[MASK] [SEP]", "a\0b"], ["日 本", "\u202e abc"]):
        np.testing.assert_array_equal(scores(neighbours), expected)
