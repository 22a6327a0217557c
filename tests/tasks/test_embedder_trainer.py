"""Losses of embedders in NumPy, GradCache, prompts, what is refused."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.metrics import nearest
from tests import published
from tests.selection import only_in

A = ["a good film", "the cast", "it is", "we play", "bad movie", "long"]
B = ["good", "they act", "is it not ?", "you", "awful and dull 🙂", "short"]
NEGATIVES = [["", "x"], ["the", "cast"], ["it", "was"], ["good", "you"], ["a", "b"], ["c", "d"]]
# Negatives that are the right text of an example.
EQUAL = np.array([[text == negative for row in NEGATIVES for negative in row] for text in B])
SCORES = [0.1, 0.9, 0.3, 0.3, 0.5, 1.0]
PAIRS = {"text": A, "text_pair": B}
T = 0.1


@pytest.fixture(scope="module")
def embedder(smallest):
    return _embedder(smallest)


def _embedder(path, **options):
    quiet = dict(dropout=0.0, attention_dropout=0.0)
    return bf.TextEmbedder.from_pretrained(path, **{**quiet, **options})


def _cosines(x, y):
    x, y = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (x, y))
    return x @ y.T


def _cross_entropy(scores):
    shifted = scores - scores.max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - np.diag(shifted)


def _expected(kind, a, b, negatives, labels, symmetric=False):
    """The losses of the papers."""
    if kind == "embedding_mse":
        return ((a - labels) ** 2).mean()
    cosines = _cosines(a, b)
    if kind == "contrastive":
        of_negatives = np.where(EQUAL, -np.inf, _cosines(a, negatives))
        scores = np.concatenate([cosines, of_negatives], axis=1) / T
        found = _cross_entropy(scores)
        return (found + _cross_entropy(cosines.T / T)).mean() / 2 if symmetric else found.mean()
    if kind == "supervised_contrastive":
        texts, classes = np.concatenate([a, b]), np.concatenate([labels, labels])
        scores = np.exp(_cosines(texts, texts) / T) * (1 - np.eye(len(texts)))
        chances = np.log(scores / scores.sum(1, keepdims=True) + np.eye(len(texts)))
        same = (classes[:, None] == classes) & ~np.eye(len(texts), dtype=bool)
        return -np.mean([chances[i, same[i]].mean() for i in range(len(texts))])
    of_pairs = np.diag(cosines)
    if kind == "cosine":
        return ((of_pairs - labels) ** 2).mean()
    terms = [
        np.exp((of_pairs[i] - of_pairs[j]) / T)
        for i in range(len(a))
        for j in range(len(a))
        if labels[i] < labels[j]
    ]
    return np.log(1 + sum(terms))


@pytest.mark.extended
@pytest.mark.parametrize("dimensions", [None, (32, 8, 3)])
@pytest.mark.parametrize(
    "kind",
    ["contrastive", "symmetric", "supervised_contrastive", "cosent", "cosine", "embedding_mse"],
)
def test_losses(embedder, kind, dimensions):
    symmetric = kind == "symmetric"
    kind = "contrastive" if symmetric else kind
    trainer = bf.EmbedderTrainer(
        embedder, kind, temperature=T, symmetric=symmetric, dimensions=dimensions
    )
    flat = [text for row in NEGATIVES for text in row]
    a, b, negatives = (embedder.predict(texts) for texts in (A, B, flat))
    labels = np.array(SCORES, "float32")
    x, y = PAIRS, labels
    if kind == "contrastive":
        x, y = {**PAIRS, "negatives": NEGATIVES}, None
    if kind == "supervised_contrastive":
        labels = y = np.arange(len(a)).astype("float32") % 2
    if kind == "embedding_mse":
        labels = y = np.random.default_rng(0).normal(size=a.shape).astype("float32")
        x = A
    found = trainer.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    expected = 0.0
    for n in dimensions or [32]:
        wanted = labels[:, :n] if kind == "embedding_mse" else labels
        expected += _expected(kind, a[:, :n], b[:, :n], negatives[:, :n], wanted, symmetric)
    assert found == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("kind", ["cosent", "cosine", "supervised_contrastive"])
def test_negatives_are_refused_where_no_loss_reads_them(embedder, kind):
    trainer = bf.EmbedderTrainer(embedder, kind)
    with pytest.raises(ValueError, match=r"Features must be .*, got .*'negatives'"):
        trainer.fit({**PAIRS, "negatives": NEGATIVES}, SCORES, verbose=0)


@pytest.mark.extended
def test_a_text_that_equals_the_right_one_is_no_negative(embedder):
    trainer = bf.EmbedderTrainer(embedder, temperature=T)
    found = trainer.evaluate(([A[0], A[1], A[2]], [B[0], B[1], B[0]]), verbose=0)
    scores = _cosines(embedder.predict(A[:3]), embedder.predict([B[0], B[1], B[0]])) / T
    scores[0, 2] = scores[2, 0] = -np.inf
    assert found == pytest.approx(_cross_entropy(scores).mean(), rel=1e-5)


@pytest.mark.extended
def test_a_negative_or_first_text_that_equals_the_right_one(embedder):
    """In both directions: a negative is another example's positive, and a question repeats."""
    trainer = bf.EmbedderTrainer(embedder, temperature=T, symmetric=True)
    data = {"text": [A[0], A[1], A[0]], "text_pair": B[:3], "negatives": [B[1], B[3], B[4]]}
    found = trainer.evaluate(data, verbose=0)
    first, second, negatives = (embedder.predict(texts) for texts in data.values())
    forward = _cosines(first, np.concatenate([second, negatives])) / T
    backward = forward[:, :3].T.copy()
    forward[1, 3] = backward[0, 2] = backward[2, 0] = -np.inf
    losses = _cross_entropy(forward) + _cross_entropy(backward)
    assert found == pytest.approx(losses.mean() / 2, rel=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["supervised_contrastive", "cosent"])
def test_sample_weights(embedder, kind):
    """A weight of 0 leaves an example out; for CoSENT, whose loss has a term for each pair of
    examples, a weight of 2 repeats it."""
    trainer = bf.EmbedderTrainer(embedder, kind, temperature=T)
    labels = [0.0, 1.0, 0.0, 1.0, 2.0, 2.0]
    none = trainer.evaluate(PAIRS, labels, sample_weight=[0.0] * 6, verbose=0)
    assert none == pytest.approx(0, abs=1e-6)
    if kind == "cosent":
        weights, rows = [0.0, 2.0, 1.0, 1.0, 1.0, 1.0], [1, 1, 2, 3, 4, 5]
        found = trainer.evaluate(PAIRS, labels, sample_weight=weights, verbose=0)
        repeated = {name: [texts[i] for i in rows] for name, texts in PAIRS.items()}
        expected = trainer.evaluate(repeated, [labels[i] for i in rows], verbose=0)
    else:
        found = trainer.evaluate(PAIRS, labels, sample_weight=[2.0] * 6, verbose=0)
        expected = 2 * trainer.evaluate(PAIRS, labels, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_query_with_several_answers(embedder, monkeypatch):
    """All of them are relevant: a perfect search has the best scores."""
    rows = {"text": ["a", "a", "b"], "text_pair": ["x", "y", "z"]}
    vectors = dict(zip("abxyz", np.eye(2)[[0, 1, 0, 0, 1]], strict=True))
    monkeypatch.setattr(
        bf.TextEmbedder,
        "predict",
        lambda _, x, **options: np.stack([vectors[t.decode()] for t in x]),
    )
    scores = embedder.score(tf.data.Dataset.from_tensor_slices((rows,)))
    assert scores == {"ndcg_10": 1.0, "mrr_10": 1.0, "recall_10": 1.0}


@only_in("full", "5-0.0", "100-0.3", "4-0.0")
@pytest.mark.parametrize(("rows", "dropout"), [(4, 0.0), (5, 0.0), (100, 0.3)])
def test_less_memory_changes_nothing(smallest, rows, dropout):
    given = {**PAIRS, "negatives": NEGATIVES}
    weights, losses = [], []
    for limit in (None, rows):
        keras.utils.set_random_seed(0)
        embedder = _embedder(smallest, dropout=dropout)
        before = [v.numpy() for v in embedder.trainable_variables]
        trainer = bf.EmbedderTrainer(embedder, symmetric=True, mini_batch_size=limit)
        trainer.compile(keras.optimizers.SGD(0.1))
        losses.append(trainer.fit(given, epochs=2, verbose=0, shuffle=False).history["loss"])
        weights.append([v.numpy() for v in embedder.trainable_variables])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for first, one, other in zip(before, *weights, strict=True):
        assert np.abs(one - first).max() > 0
        np.testing.assert_allclose(other, one, atol=2e-5)


@pytest.mark.extended
@pytest.mark.parametrize("limit", [None, 2])
def test_metrics_and_losses_of_compile(embedder, limit):
    def cosine(labels, vectors):
        return keras.ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)

    trainer = bf.EmbedderTrainer(embedder, "cosine", mini_batch_size=limit)
    trainer.compile(keras.optimizers.SGD(0.0), cosine, metrics=[cosine], run_eagerly=True)
    found = trainer.fit(PAIRS, SCORES, batch_size=4, verbose=0).history
    expected = np.diag(_cosines(embedder.predict(A), embedder.predict(B))).mean()
    assert found == {name: [pytest.approx(expected, rel=1e-5)] for name in ("loss", "cosine")}


@pytest.mark.extended
def test_lists_of_texts(embedder):
    """As sentence-transformers has them, with and without negatives."""
    trainer = bf.EmbedderTrainer(embedder)
    for columns in (PAIRS, {**PAIRS, "negatives": [row[0] for row in NEGATIVES]}):
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        for given in (rows, [*map(tuple, rows)]):
            [(found,)], [(expected,)] = map(trainer.text_batches, (given, columns))
            np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])


@pytest.mark.full
def test_it_learns(smallest):
    embedder = _embedder(smallest)
    trainer = bf.EmbedderTrainer(embedder)
    trainer.compile(keras.optimizers.Adam(3e-3))
    frame = pandas.DataFrame(PAIRS)
    history = trainer.fit(frame, epochs=10, batch_size=3, verbose=0, validation_data=frame).history
    assert history["loss"][-1] < history["loss"][0] / 2
    found, scores = nearest(embedder.predict(A), embedder.predict(B), 3)
    assert found[:, 0].tolist() == list(range(len(A)))
    assert (np.diff(scores) <= 0).all()


@only_in("full", "False-roberta", "True-xlnet", "False-xlnet", "True-roberta")
@pytest.mark.parametrize("family", ["xlnet", "roberta"])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts(family, include_prompt):
    task = published.task("TextEmbedder", family)
    embedder = bf.TextEmbedder(
        task.backbone, task.tokenizer, max_length=20, include_prompt=include_prompt,
        prompts={"query": "ask it : ", "passage": "read : "}, default_prompt="passage",
    )  # fmt: skip
    slices = tf.data.Dataset.from_tensor_slices({**PAIRS, "negatives": [n[0] for n in NEGATIVES]})
    for prompts in (("query", "passage"), (None, "query"), None):
        trainer = bf.EmbedderTrainer(embedder, prompts=prompts)
        [(inputs,)] = trainer.text_batches(slices)
        first, other = prompts or ("passage", "passage")
        columns = [(A, first), (B, other), ([n[0] for n in NEGATIVES], other)]
        expected = [embedder.predict(texts, prompt=prompt) for texts, prompt in columns]
        np.testing.assert_allclose(trainer(inputs), np.stack(expected, axis=1), atol=1e-5)


@pytest.mark.extended
def test_mistakes(embedder):
    make = bf.EmbedderTrainer
    for options, message in (
        (dict(objective="contrastiv"), "Did you mean 'contrastive'"),
        (dict(temperature=0), "temperature must be above 0, got 0"),
        (dict(dimensions=(33,)), r"dimensions must be from 1 to 32, got \(33,\)"),
        (dict(prompts=("query", None)), "Unknown prompt 'query'"),
        (dict(mini_batch_size=0), "mini_batch_size must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make(embedder, **options)
    with pytest.raises(ValueError, match="'contrastive' takes no labels"):
        make(embedder).fit(PAIRS, SCORES)
    with pytest.raises(ValueError, match=r"No labels were given .* 'cosent' takes labels"):
        make(embedder, "cosent").fit(PAIRS)
    with pytest.raises(ValueError, match="'text' and 'text_pair' and optionally 'negatives'"):
        make(embedder).fit(A)
    with pytest.raises(ValueError, match=r"the shape \(examples, width\), got"):
        make(embedder, "embedding_mse").fit(A, SCORES)
    with pytest.raises(ValueError, match=r"the embedder's width, 32, got 1\. A projection"):
        make(embedder, "embedding_mse").fit(A, np.zeros((6, 1)))
    with pytest.raises(ValueError, match=r"objective 'cosine' must be from -1 to 1, got 4\.5"):
        make(embedder, "cosine").fit(PAIRS, [*SCORES[:-1], 4.5], verbose=0)
    rounded = np.float32([*SCORES[:-1], 1.0000002])  # a cosine of equal vectors
    assert len(list(make(embedder, "cosine").text_batches(PAIRS, rounded))) == 1
    with pytest.raises(ValueError, match="Row 5 of 'the labels' is missing"):
        make(embedder, "cosine").fit(PAIRS, [*SCORES[:-1], np.nan], verbose=0)
    with pytest.raises(ValueError, match="accumulation_steps must be 1"):
        make(embedder).compile(accumulation_steps=2)
    with pytest.raises(ValueError, match="mini_batch_size must be None with jit_compile, got 2"):
        make(embedder, mini_batch_size=2).compile(jit_compile=True)
    for x, y in ((PAIRS, None), (PAIRS, SCORES), (A, None)):
        with pytest.raises(ValueError, match=r"EmbedderTrainer\(embedder\) trains"):
            embedder.fit(x, y)


def test_the_former_name_of_mini_batch_size_warns(embedder):
    with pytest.warns(FutureWarning, match="rows_in_memory is called mini_batch_size"):
        bf.EmbedderTrainer(embedder, rows_in_memory=2)
    with pytest.warns(FutureWarning, match="rows_in_memory is called mini_batch_size"):
        settings = bf.EmbedderTrainer.Settings(rows_in_memory=2)
    assert settings == bf.EmbedderTrainer.Settings(mini_batch_size=2)


@pytest.mark.extended
def test_each_fit_without_compile_has_a_schedule_of_its_own(smallest):
    trainer = bf.EmbedderTrainer(_embedder(smallest))
    trainer.fit(PAIRS, batch_size=3, verbose=0)
    before = trainer.embedder.predict(A)
    trainer.fit(PAIRS, batch_size=3, epochs=2, verbose=0)
    assert trainer.optimizer.iterations == 4
    assert abs(trainer.embedder.predict(A) - before).max() > 1e-5


@pytest.mark.extended
def test_steps_on_one_batch_of_raw_text_are_those_of_fit(smallest):
    """train_on_batch, test_on_batch and predict_on_batch; the batch has every text."""
    ours, theirs = (bf.EmbedderTrainer(_embedder(smallest), "cosent") for _ in range(2))
    for trainer in (ours, theirs):
        trainer.compile(keras.optimizers.SGD(0.1))
    tested = ours.test_on_batch(PAIRS, SCORES, return_dict=True)
    assert tested == pytest.approx(theirs.evaluate(PAIRS, SCORES, verbose=0, return_dict=True))
    ours.reset_metrics()
    loss = ours.train_on_batch(PAIRS, SCORES, return_dict=True)["loss"]
    history = theirs.fit(PAIRS, SCORES, shuffle=False, verbose=0).history
    assert loss == pytest.approx(history["loss"][0])
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    (batch, _) = next(iter(ours.text_batches(PAIRS, SCORES)))
    vectors = ours.predict_on_batch(batch)
    np.testing.assert_allclose(vectors[:, 0], ours.embedder.predict(A), atol=1e-5)
    with pytest.raises(ValueError, match=r"embedder\.predict\(\), and fit\(\) to train, got list"):
        ours.predict_on_batch(A)
