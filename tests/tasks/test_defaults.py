"""What users get without a choice of their own: batches of 32, shuffled, padded, with dropout.

Texts have many lengths and are more than a batch: 40 make batches of 32 and 8. Each score is
compared with one that is computed from answers to one text at a time.
"""

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from tests import published
from tests.seeding import seed
from tests.selection import in_full

QUIET = dict(dropout=0.0, attention_dropout=0.0)
LABELS, TAGS = ["bad", "good"], ["O", "B-X", "I-X"]
_RANDOM = np.random.default_rng(0)
_DRAWN = [_RANDOM.choice(published.WORDS, count) for count in _RANDOM.integers(1, 13, 60)]
# All of them differ.
WORDS = [text.split() for text in dict.fromkeys(map(" ".join, _DRAWN))][:40]
TEXTS = [" ".join(words) for words in WORDS]
NAMES = _RANDOM.choice(LABELS, 40, p=[0.7, 0.3]).tolist()
NUMBERS = _RANDOM.normal(size=40).tolist()
MATRIX = _RANDOM.integers(0, 2, (40, 3))
TAGGED = [_RANDOM.choice(TAGS, len(words)).tolist() for words in WORDS]
DOCUMENTS = [[TEXTS[(7 * i + j) % 40] for j in range(1 + i % 4)] for i in range(40)]
RELEVANT = [_RANDOM.integers(0, 2, len(each)).tolist() for each in DOCUMENTS]
SPANS = {
    "answer": [words[-1] for words in WORDS],
    "answer_start": [len(text) - len(text.split()[-1]) for text in TEXTS],
}


@pytest.fixture(scope="module")
def task(smallest):
    """Makes a task without dropout whose weights matter, one for each class."""
    made = {}

    def make(name, *options, **others):
        if name not in made:
            seed(0)
            task = getattr(bf, name).from_pretrained(smallest, *options, **QUIET, **others)
            for i, variable in enumerate(task.weights):
                noise = np.random.default_rng(i).normal(0, 0.3, variable.shape)
                variable.assign_add(noise.astype("float32"))
            made[name] = task
        return made[name]

    return make


def _alone(task, texts):
    """The scores of each text, which is a batch of its own."""
    return np.stack([task.predict(text)[0]["scores"] for text in texts])


def _f1(true, found):
    return 2 * np.sum(true & found) / (np.sum(true) + np.sum(found))


def _of_labels(task):
    made = task("TextClassifier", LABELS, pair=False)
    made.compile(
        keras.optimizers.SGD(0.0), metrics=["accuracy", "f1", "matthews", "precision", "recall"]
    )
    scores, true = _alone(made, TEXTS), np.array([LABELS.index(name) for name in NAMES])
    found = scores.argmax(1)
    hits = np.sum((found == 1) & (true == 1))
    return made, (TEXTS, NAMES), {
        "loss": -np.log(scores[range(40), true]).mean(),
        "accuracy": np.mean(found == true),
        "f1": _f1(true == 1, found == 1),
        "matthews": np.corrcoef(found, true)[0, 1],
        "precision": hits / np.sum(found == 1),
        "recall": hits / np.sum(true == 1),
    }  # fmt: skip


def _of_numbers(task):
    made = task("TextRegressor", pair=False)
    made.compile(keras.optimizers.SGD(0.0))
    scores = np.concatenate([made.predict(text) for text in TEXTS])
    ranks = [np.argsort(np.argsort(values)) for values in (scores, NUMBERS)]
    return made, (TEXTS, NUMBERS), {
        "loss": np.mean((scores - NUMBERS) ** 2),
        "pearson": np.corrcoef(scores, NUMBERS)[0, 1],
        "spearman": np.corrcoef(*ranks)[0, 1],
    }  # fmt: skip


def _of_several_labels(task):
    made = task("MultiLabelClassifier", ["fun", "sad", "long"], pair=False)
    made.compile(keras.optimizers.SGD(0.0), metrics=["micro_f1"])
    scores = _alone(made, TEXTS).astype("float64")
    losses = -np.where(MATRIX == 1, np.log(scores), np.log(1 - scores))
    return made, (TEXTS, MATRIX), {
        "loss": losses.mean(),
        "micro_f1": _f1(MATRIX == 1, scores >= 0.5),
    }  # fmt: skip


def _of_lists(task):
    made = task("Reranker")
    made.compile(keras.optimizers.SGD(0.0))
    mrr, ndcg, losses = [], [], []
    for query, documents, labels in zip(TEXTS, DOCUMENTS, RELEVANT, strict=True):
        alone = [made.predict(([query], [text]))[0] for text in documents]
        true, scores = np.array(labels), np.array(alone, "float64")
        losses += np.where(true == 1, -np.log(scores), -np.log(1 - scores)).tolist()
        if any(labels):  # the others say nothing of an order
            gains = true[np.argsort(-scores)] / np.log2(np.arange(len(true)) + 2)
            best = np.sort(true)[::-1] / np.log2(np.arange(len(true)) + 2)
            mrr.append(1 / (1 + np.argmax(gains > 0)))
            ndcg.append(gains.sum() / best.sum())
    return made, ({"query": TEXTS, "document": DOCUMENTS}, RELEVANT), {
        "loss": np.mean(losses), "mrr_10": np.mean(mrr), "ndcg_10": np.mean(ndcg),
    }  # fmt: skip


SCORED = {
    "labels": _of_labels,
    "numbers": _of_numbers,
    "several labels": _of_several_labels,
    "lists": _of_lists,
}


@pytest.mark.extended
@pytest.mark.parametrize("name", in_full(SCORED, ["labels"]))
def test_scores_of_several_batches(task, name):
    """Of ``evaluate``, and of an epoch of ``fit``, whose weights stay the same."""
    made, data, expected = SCORED[name](task)
    found = made.evaluate(*data, verbose=0, return_dict=True)
    trained = made.fit(*data, verbose=0).history
    assert expected.keys() == found.keys() == trained.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-5), key
        assert trained[key][0] == pytest.approx(value, abs=1e-5), key


@pytest.mark.full
def test_tags_of_several_batches(task):
    tagger = task("TokenTagger", TAGS)
    answers = tagger.predict(WORDS)
    alone = [[word["tag"] for word in tagger.predict([words])[0]] for words in WORDS]
    assert [[word["tag"] for word in row] for row in answers] == alone
    found = tagger.evaluate(WORDS, TAGGED, return_dict=True, verbose=0)
    expected = bf.metrics.entity_scores(TAGGED, alone)
    assert {key: found[key] for key in expected} == pytest.approx(expected)


@pytest.mark.full
def test_spans_of_several_batches(task):
    qa = task("SpanQA")
    questions = [words[0] for words in WORDS]
    answers = qa.predict((questions, TEXTS))
    for answer, question, text in zip(answers, questions, TEXTS, strict=True):
        [alone] = qa.predict(([question], [text]))
        assert answer["score"] == pytest.approx(alone["score"], rel=1e-4)
    right = [
        bf.metrics.exact_match(row["answer"], [words[-1]])
        for row, words in zip(answers, WORDS, strict=True)
    ]
    found = qa.evaluate((questions, TEXTS), SPANS, return_dict=True, verbose=0)
    assert found["exact_match"] == pytest.approx(100 * np.mean(right))


@pytest.mark.extended
def test_epochs_have_orders_of_their_own_and_dropout(smallest, monkeypatch):
    """Each example is in one batch of an epoch, with its label; other batches in each epoch."""
    classifier = bf.TextClassifier.from_pretrained(smallest, LABELS, pair=False)
    classifier.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    before = classifier.evaluate(TEXTS, NAMES, verbose=0)[0]
    rows = [
        tuple(row[row > 0]) for row in classifier.preprocess({"text": TEXTS})["token_ids"].numpy()
    ]
    known = dict(zip(rows, NAMES, strict=True))
    compute, seen = classifier.compute_loss, []

    def compute_loss(x, y, *others, **options):
        ids, mask = x["token_ids"].numpy(), x["padding_mask"].numpy()
        assert mask.any(axis=0).all()  # to the longest of the batch
        tokens = [tuple(row[:n]) for row, n in zip(ids, mask.sum(axis=1), strict=True)]
        assert [known[each] for each in tokens] == [LABELS[label] for label in y.numpy()]
        seen.append(tokens)
        return compute(x, y, *others, **options)

    monkeypatch.setattr(classifier, "compute_loss", compute_loss)
    losses = classifier.fit(TEXTS, NAMES, epochs=3, verbose=0).history["loss"]
    assert sorted(map(len, seen)) == [8] * 3 + [32] * 3
    epochs = [seen[i] + seen[i + 1] for i in (0, 2, 4)]
    assert all(sorted(each) == sorted(rows) for each in epochs)
    # Rows of one length are in random order too.
    assert epochs[0] != epochs[1] != epochs[2]
    assert len({round(loss, 6) for loss in [before, *losses]}) == 4


@pytest.mark.full
def test_the_default_optimizer_ends_with_the_last_step(smallest):
    classifier = bf.TextClassifier.from_pretrained(smallest, LABELS)
    history = classifier.fit(TEXTS, NAMES, validation_split=0.1, epochs=2, verbose=0).history
    assert history.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    # 36 examples, two batches in each epoch.
    assert int(classifier.optimizer.iterations) == 4
    assert float(classifier.optimizer.learning_rate) == pytest.approx(0, abs=1e-9)
    after = classifier.evaluate(TEXTS[36:], NAMES[36:], verbose=0, return_dict=True)
    assert history["val_loss"][-1] == pytest.approx(after["loss"], rel=1e-5)


def _log_softmax(values):
    shifted = values - values.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.full
def test_negatives_are_those_of_each_batch(task):
    """The first 32 pairs, and the last 8; the mean is over pairs."""
    embedder = task("TextEmbedder")
    a, b = TEXTS, TEXTS[1:] + TEXTS[:1]
    x, y = (np.concatenate([embedder.predict(text) for text in each]) for each in (a, b))
    x, y = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, y))
    expected = [
        -np.diag(_log_softmax(x[rows] @ y[rows].T / 0.05)) for rows in (slice(32), slice(32, 40))
    ]
    trainer = bf.EmbedderTrainer(embedder)
    found = trainer.evaluate((a, b), verbose=0)
    assert found == pytest.approx(np.concatenate(expected).mean(), rel=1e-4)


@pytest.mark.full
def test_pairs_with_scores_are_shuffled_with_their_scores(task):
    """The mean over pairs is the same in any order."""
    embedder = task("TextEmbedder")
    vectors = np.concatenate([embedder.predict(text) for text in TEXTS])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = np.clip(NUMBERS, -1, 1)
    expected = np.mean((np.sum(vectors * vectors[::-1], axis=1) - similarities) ** 2)
    trainer = bf.EmbedderTrainer(embedder, "cosine")
    trainer.compile(keras.optimizers.SGD(0.0))
    losses = trainer.fit((TEXTS, TEXTS[::-1]), similarities, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.full
def test_tasks_of_different_sizes(smallest):
    """Two batches of one task and one of the other: each example once in an epoch."""
    seed(0)
    backbone = bf.load_backbone(smallest, **QUIET)
    tokenizer = bf.load_tokenizer(smallest)
    model = bf.MultiTask(
        {
            "film": bf.TextClassifier(backbone, tokenizer, LABELS),
            "score": bf.TextRegressor(backbone, tokenizer),
        }
    )
    model.compile(keras.optimizers.SGD(0.0))
    data = {"film": (TEXTS, NAMES), "score": (TEXTS[:5], NUMBERS[:5])}
    found = model.fit(data, validation_data=data, verbose=0).history
    assert int(model.optimizer.iterations) == 3
    scores = _alone(model["film"], TEXTS)
    expected = -np.log(scores[range(40), [LABELS.index(name) for name in NAMES]]).mean()
    numbers = np.concatenate([model["score"].predict(text) for text in TEXTS[:5]])
    of_numbers = np.mean((numbers - NUMBERS[:5]) ** 2)
    for prefix in ("", "val_"):
        assert found[f"{prefix}film_loss"][0] == pytest.approx(expected, rel=1e-5)
        assert found[f"{prefix}score_loss"][0] == pytest.approx(of_numbers, rel=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(["gpt2", "xlnet"], ["gpt2"]))
def test_texts_are_continued_as_alone(family):
    """Greedily, from prompts of different lengths."""
    model = published.task("CausalLM", family)
    found = model.generate(TEXTS[:6], max_new_tokens=6)
    assert found == [model.generate(text, max_new_tokens=6) for text in TEXTS[:6]]
    assert len(set(found)) > 1


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt2", "xlnet"])
def test_perplexity_of_several_batches(family):
    model = published.task("CausalLM", family)
    alone = [model.predict(text)[0] for text in TEXTS]
    # No special tokens, also where the tokenizer has some for other tasks, as XLNet's has.
    counts = [len(model.tokenizer.tokenize(text)) - 1 for text in TEXTS]
    assert [row["tokens"] for row in alone] == counts
    total = sum(row["log_likelihood"] for row in alone) / sum(row["tokens"] for row in alone)
    assert model.perplexity(TEXTS) == pytest.approx(np.exp(-total), rel=1e-4)


@pytest.mark.extended
def test_masks_are_filled_as_alone(task):
    model = task("MaskedLM")
    texts = [f"[MASK] {text} [MASK]" for text in TEXTS]
    for answer, text in zip(model.predict(texts), texts, strict=True):
        [alone] = model.predict(text)
        assert len(answer) == len(alone) == 2
        for one, other in zip(answer, alone, strict=True):
            scores = [[choice["score"] for choice in each] for each in (one, other)]
            np.testing.assert_allclose(*scores, rtol=1e-4)
