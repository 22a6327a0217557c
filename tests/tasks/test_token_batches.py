"""``fit`` by a number of tokens in each task, and that padding changes no loss."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.models import unpadding
from bertfam_tf.text import load_tokenizer
from bertfam_tf.training.optimizers import adamw
from tests.selection import in_full, only_in

TEXTS = ["a good film", "bad", "the plot is very dull", "great acting!", "it is", "it is bad"] * 2
NAMES = ["positive", "negative", "negative", "positive", "neutral", "negative"] * 2
WEIGHTS = [1.0, 0.5, 2.0, 0.0, 1.0, 3.0] * 2
ASKED = {
    "question": ["what"] * 3,
    "context": ["a good film and a bad plot " * n for n in (5, 1, 2)],
}
ANSWERS = {"answer": ["bad plot", "film", "good"], "answer_start": [45, 7, 2]}
OFF = dict(dropout=0.0, attention_dropout=0.0)
slices = tf.data.Dataset.from_tensor_slices


class _Seen(keras.callbacks.Callback):
    """Keeps the loss after each step."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        # Of the epoch so far.
        self.losses.append(float(logs["loss"]))


def _batches(task, *data, **options):
    """The batches that ``fit`` would take."""
    return list(task.text_batches(*data, **options))


# Batches --------------------------------------------------------------------------------------


@pytest.mark.full
def test_fit_by_tokens(classifier):
    """Steps are counted for the schedule; each example is seen once an epoch."""
    counts = classifier.count_tokens({"text": tf.constant(TEXTS)}).numpy()
    seen = _Seen()
    classifier.fit(TEXTS, NAMES, batch_tokens=20, epochs=3, verbose=0, callbacks=[seen])
    assert len(seen.losses) % 3 == 0
    assert counts.sum() / 20 < len(seen.losses) / 3 < len(TEXTS)
    # The default schedule ends with these steps.
    rate = classifier.optimizer.learning_rate
    assert float(rate) == pytest.approx(0, abs=1e-9)


@pytest.mark.full
def test_a_data_set_by_tokens(classifier):
    rows = slices((TEXTS, NAMES, WEIGHTS))
    batches = _batches(classifier, rows, batch_tokens=20)
    assert all(inputs["padding_mask"].numpy().sum() <= 20 for inputs, *_ in batches)
    assert sorted(np.concatenate([w for *_, w in batches])) == sorted(WEIGHTS)
    endless = classifier.text_batches(rows.repeat(), batch_tokens=20)
    assert len(list(endless.take(30))) == 30
    with pytest.raises(ValueError, match=r"single examples, got a batched one; call unbatch\(\)"):
        classifier.fit(rows.batch(4), batch_tokens=20, verbose=0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(batch_size=4, batch_tokens=20), "None, got batch_size=4 and batch_tokens=20"),
        (dict(batch_tokens=6), "batch_tokens is 6, less than the 7 tokens of an example."),
        (dict(batch_tokens=0), "batch_tokens must be at least 1, got 0"),
    ],
)
def test_budgets_that_make_no_sense(classifier, options, error):
    with pytest.raises(ValueError, match=error):
        classifier.fit(TEXTS, NAMES, verbose=0, **options)


def _tagger(smallest):
    task = bf.TokenTagger.from_pretrained(smallest, ["O", "X"], max_length=8, stride=2, **OFF)
    texts = ["a good film", "bad", "a good film and a bad plot and a film"] * 2
    tags = ["O X O", "X", "O X O O O O O O O X"] * 2
    # An example's windows: room for 6 pieces, 2 of them repeated.
    return task, texts, tags, [5, 3, 8 + 8]


def _span_qa(smallest):
    task = bf.SpanQA.from_pretrained(smallest, max_length=16, stride=4, max_question=4, **OFF)
    return task, ASKED, ANSWERS, None


def _choice(smallest):
    task = bf.MultipleChoice.from_pretrained(smallest, 2, **OFF)
    rows = {"text": TEXTS, "choices": [["good", "a bad film"], ["it", ""]] * 6}
    return task, rows, [0, 1] * 6, None


TASKS = {"tags": _tagger, "spans": _span_qa, "choices": _choice}


@pytest.mark.full
@pytest.mark.parametrize("name", in_full(TASKS, ["tags"]))
def test_budgets_count_all_rows_of_an_example(name, smallest):
    """Windows, and choices; labels and weights stay with their examples."""
    task, x, y, counts = TASKS[name](smallest)
    number = len(y if isinstance(y, list) else y["answer"])
    weights = np.arange(1.0, number + 1)
    features = {"text": x} if isinstance(x, list) else x
    found = task.count_tokens({n: tf.constant(v) for n, v in features.items()}).numpy()
    whole = _batches(task, x, y, weights, batch_size=number)
    assert found.sum() == whole[0][0]["padding_mask"].numpy().sum()
    if counts is not None:
        assert found[: len(counts)].tolist() == counts
    budget = int(found.max())
    batches = _batches(task, x, y, weights, batch_tokens=budget, shuffle=True)
    sizes = [inputs["padding_mask"].numpy().sum() for inputs, *_ in batches]
    assert sum(sizes) == found.sum()
    assert max(sizes) <= budget
    assert len(batches) > 1
    for inputs, targets, weight in batches:
        rows = {len(each) for each in tf.nest.flatten((inputs, targets, weight))}
        assert len(rows) == 1


@only_in("full", "tags")
@pytest.mark.parametrize("name", in_full(TASKS, ["tags"]))
def test_a_step_on_one_batch_is_that_of_fit(name, smallest):
    task, x, y, _ = TASKS[name](smallest)
    task.compile(keras.optimizers.SGD(0.0))
    loss = task.train_on_batch(x, y, return_dict=True)["loss"]
    found = task.fit(x, y, batch_size=len(TEXTS), verbose=0).history["loss"]
    assert loss == pytest.approx(found[0], rel=1e-5)


# Widths ---------------------------------------------------------------------------------------


def _with_padding(smallest, padding):
    keras.utils.set_random_seed(0)
    return bf.TextClassifier.from_pretrained(smallest, padding=padding, max_length=12, **OFF)


@pytest.mark.full
def test_padding_to_a_few_widths(smallest):
    task = _with_padding(smallest, [6, 10])
    inputs = [task.preprocess({"text": tf.constant([text])}) for text in TEXTS[:3]]
    assert [each["token_ids"].shape[1] for each in inputs] == [6, 6, 10]
    scores = [
        [answer["scores"] for answer in each.predict(TEXTS)]
        for each in (task, _with_padding(smallest, "longest"))
    ]
    np.testing.assert_allclose(*scores, atol=1e-6)
    assert task.describe()["options"]["padding"] == [6, 10]
    with pytest.raises(ValueError, match="padding must be 'longest', 'max_length' or"):
        _with_padding(smallest, "short")


@pytest.mark.full
def test_xla_compiles_once_for_one_width(smallest):
    tasks = [_with_padding(smallest, padding) for padding in ("longest", "max_length")]
    tasks[0].compile(keras.optimizers.SGD(0.1))
    tasks[1].compile(keras.optimizers.SGD(0.1), jit_compile=True)
    losses = [
        task.fit(TEXTS, NAMES, batch_size=3, shuffle=False, verbose=0).history["loss"]
        for task in tasks
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert {
        inputs["token_ids"].shape for inputs, _ in _batches(tasks[1], TEXTS, NAMES, batch_size=3)
    } == {(3, 12)}


# Losses ---------------------------------------------------------------------------------------

SHAPE = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32)


def _classifier(backbone, tokenizer, real_data):
    lines = real_data("glue/SST-2/dev.tsv").read_text().split("\n")[1:65]
    rows = [line.split("\t") for line in lines]
    task = bf.TextClassifier(backbone, tokenizer, ["0", "1"], pair=False)
    return task, [text for text, _ in rows], [label for _, label in rows]


def _real_tagger(backbone, tokenizer, real_data):
    sentences = real_data("conll2003/eng.testa").read_text().split("\n\n")[1:33]
    rows = [[line.split() for line in each.split("\n")] for each in sentences]
    tags = sorted({word[-1] for row in rows for word in row})
    task = bf.TokenTagger(backbone, tokenizer, tags, max_length=32, stride=8)
    return task, [[w[0] for w in row] for row in rows], [[w[-1] for w in row] for row in rows]


def _real_questions(backbone, tokenizer, real_data):
    data = json.loads(real_data("squad/dev-v1.1.json").read_text())["data"]
    paragraphs = [each for article in data[:4] for each in article["paragraphs"][:4]]
    asked = [(each["context"], each["qas"][0]) for each in paragraphs]
    x = {"question": [qa["question"] for _, qa in asked], "context": [c for c, _ in asked]}
    y = {
        "answer": [qa["answers"][0]["text"] for _, qa in asked],
        "answer_start": [qa["answers"][0]["answer_start"] for _, qa in asked],
    }
    return bf.SpanQA(backbone, tokenizer, max_length=96, stride=32), x, y


@only_in("full", "_classifier")
@pytest.mark.parametrize(
    "make", in_full([_classifier, _real_tagger, _real_questions], [_classifier])
)
def test_losses_of_eight_steps_are_those_with_padding(make, real_data):
    """On real text, whose batches have rows of many lengths."""
    vocabulary = real_data("vocab/bert-base-uncased/vocab.txt").parent
    tokenizer = load_tokenizer(vocabulary)
    losses = []
    for padded in (True, False):
        keras.utils.set_random_seed(0)
        backbone = bf.build("bert", "tiny", vocab_size=tokenizer.vocab_size, **SHAPE, **OFF)
        task, x, y = make(backbone, tokenizer, real_data)
        rng = np.random.default_rng(0)
        for weight in task.weights:
            weight.assign_add(rng.normal(0, 0.3, weight.shape))
        number = len(y if isinstance(y, list) else y["answer"])
        task.compile(adamw(1e-3, total_steps=8))
        seen = _Seen()
        with unpadding(not padded):
            task.fit(x, y, batch_size=number // 8, shuffle=False, verbose=0, callbacks=[seen])
        assert len(seen.losses) == 8
        losses.append(seen.losses)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=2e-5)
    # Eight steps that change the model.
    assert np.abs(np.diff(losses[0])).min() > 1e-4
