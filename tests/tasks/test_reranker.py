"""Rerankers: against the head on pairs packed by hand, losses in NumPy, lists, what is refused."""

import json

import numpy as np
import pandas
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.export.runtime import load
from bertfam_tf.sources import CheckpointError
from tests.selection import only_in

QUERIES = ["was the film good ?", "", "who played"]
DOCUMENTS = [["a good film", "the cast"], ["the plot was dull and long"], ["", "we play", "bad 🙂"]]
LABELS = [[1, 0], [1], [0, 0.5, 1]]
LISTS = {"query": QUERIES, "document": DOCUMENTS}
PAIRS = {
    "query": [q for q, each in zip(QUERIES, DOCUMENTS, strict=True) for _ in each],
    "document": [text for each in DOCUMENTS for text in each],
}
FLAT = np.concatenate(LABELS).astype("float32")


@pytest.fixture(scope="module")
def reranker(smallest):
    return _reranker(smallest)


def _reranker(path, **options):
    quiet = dict(dropout=0.0, attention_dropout=0.0, max_length=16)
    task = bf.Reranker.from_pretrained(path, **{**quiet, **options})
    for variable in task.head.weights:
        variable.assign_add(np.random.default_rng(0).normal(0, 0.5, variable.shape))
    return task


def _logits(task, pairs):
    """Of each pair, packed by hand and run alone."""
    ids, found = task.tokenizer.special_ids, []
    for query, document in zip(pairs["query"], pairs["document"], strict=True):
        a, b = (task.tokenizer.tokenize(t).numpy().tolist() for t in (query, document))
        assert len(a) + len(b) <= task.max_length - 3
        tokens = [ids["cls"], *a, ids["sep"], *b, ids["sep"]]
        given = {
            "token_ids": np.array([tokens], "int32"),
            "padding_mask": np.ones((1, len(tokens)), "int32"),
            "segment_ids": np.array([[0] * (len(a) + 2) + [1] * (len(b) + 1)], "int32"),
        }
        outputs = task.backbone(given, training=False)
        found.append(float(task.head(outputs, training=False)[0, 0]))
    return np.array(found)


def test_whole_numbers_in_the_first_batch_of_a_generator(reranker):
    numbers = [1, 0, 0.9]
    columns = (PAIRS["query"], PAIRS["document"], numbers)
    generator = (
        ((query[a:b], document[a:b]), labels[a:b])
        for query, document, labels in [columns]
        for a, b in ((0, 2), (2, 3))
    )
    found = np.concatenate([labels for _, labels in reranker.text_batches(generator)])
    np.testing.assert_array_equal(found[:, 0], np.float32(numbers))


@only_in("full", "1")
@only_in("extended", "4")
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_scores_are_the_head_s_on_pairs_packed_by_hand(reranker, batch_size):
    expected = 1 / (1 + np.exp(-_logits(reranker, PAIRS)))
    assert np.ptp(expected) > 1e-3
    found = reranker.predict(PAIRS, batch_size=batch_size)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)
    lists = reranker.predict(LISTS, batch_size=batch_size)
    assert [each.shape for each in lists] == [(2,), (1,), (3,)]
    np.testing.assert_allclose(np.concatenate(lists), expected, atol=2e-6)


@pytest.mark.extended
def test_what_predict_reads(reranker):
    expected = reranker.predict(PAIRS)
    slices = tf.data.Dataset.from_tensor_slices
    for x in (
        (PAIRS["query"], PAIRS["document"]),
        pandas.DataFrame({**PAIRS, "other": 1}),
        slices(PAIRS),
        slices(PAIRS).batch(4),
        slices((PAIRS, FLAT)),
    ):
        np.testing.assert_allclose(reranker.predict(x), expected, atol=2e-6)
    for x in ((QUERIES, DOCUMENTS), pandas.DataFrame(LISTS), {**LISTS, "label": LABELS}):
        if isinstance(x, dict):
            x = {name: x[name] for name in ("query", "document")}
        np.testing.assert_allclose(np.concatenate(reranker.predict(x)), expected, atol=2e-6)
    # One query, and a data set of lists of one length.
    one = {"query": QUERIES[2], "document": DOCUMENTS[2]}
    np.testing.assert_allclose(reranker.predict(one)[0], expected[3:], atol=2e-6)
    single = slices({"query": [QUERIES[2]], "document": [DOCUMENTS[2]]})
    np.testing.assert_allclose(reranker.predict(single)[0], expected[3:], atol=2e-6)
    empty = reranker.predict({"query": QUERIES[:2], "document": [["a"], []]})
    assert [len(each) for each in empty] == [1, 0]


def test_hostile_texts(reranker):
    texts = ["", " \t", "\0", "🙂 日本語", "[SEP] [CLS]", "good " * 3000, "x" * 10_000, "\ud800"]
    scores = reranker.predict({"query": texts, "document": texts[::-1]})
    assert np.isfinite(scores).all()
    for query in texts:
        found = reranker.rank(query, texts)
        assert sorted(each["index"] for each in found) == list(range(len(texts)))


def test_logits_of_a_stored_model_with_a_sigmoid(reranker, tmp_path):
    reranker.save_pretrained(tmp_path / "model")
    stored, logits = (
        bf.Reranker.from_pretrained(tmp_path / "model", **options)
        for options in ({}, {"activation": None})
    )
    assert (stored.activation, logits.activation) == ("sigmoid", None)


@pytest.mark.parametrize("top_k", [-1, 0, 1.5])
def test_wrong_numbers_of_documents(reranker, top_k):
    with pytest.raises(ValueError, match="top_k must be"):
        reranker.rank("a", ["b", "c"], top_k)


@pytest.mark.extended
def test_rank(reranker):
    documents = [*DOCUMENTS[0], "a good film", "the plot"] * 12  # more than one part of the model
    scores = reranker.predict(([QUERIES[0]] * len(documents), documents))
    found = reranker.rank(QUERIES[0], documents, batch_size=7)
    ordered = [each["score"] for each in found]
    assert ordered == sorted(ordered, reverse=True)
    np.testing.assert_allclose(ordered, scores[[each["index"] for each in found]], atol=2e-6)
    assert [each["text"] for each in found] == [documents[each["index"]] for each in found]
    assert reranker.rank(QUERIES[0], documents, 3) == reranker.rank(QUERIES[0], documents)[:3]
    features = {"query": tf.constant(QUERIES[:1]), "documents": tf.constant([documents])}
    graph = tf.function(reranker.ranked)(features)
    np.testing.assert_allclose(graph["score"][0], ordered, atol=2e-6)
    np.testing.assert_allclose(scores[graph["index"][0]], ordered, atol=2e-6)
    none = {"query": tf.constant(QUERIES), "documents": tf.zeros([3, 0], tf.string)}
    assert tf.function(reranker.ranked)(none)["index"].shape == (3, 0)
    with pytest.raises(ValueError, match="no text"):
        reranker.rank("a", [])
    with pytest.raises(ValueError, match="Example 1 of 'document' must be a string, got 3"):
        reranker.rank("a", ["b", 3])


def _softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def _loss(objective, logits):
    """By the papers' definitions, over lists of different lengths."""
    rows = np.split(logits, np.cumsum([len(each) for each in LABELS])[:-1])
    pairs = list(zip(map(np.array, LABELS), rows, strict=True))
    if objective == "binary":
        parts = [-t * np.log(1 / (1 + np.exp(-x))) - (1 - t) * np.log(1 / (1 + np.exp(x)))
                 for t, x in pairs]  # fmt: skip
        return np.concatenate(parts).mean()
    if objective == "listwise":
        return np.mean([-(t / t.sum() * np.log(_softmax(x))).sum() for t, x in pairs])
    if objective == "mse":
        return np.concatenate([(x - t) ** 2 for t, x in pairs]).mean()
    return np.concatenate([((x[0] - x[1:]) - (t[0] - t[1:])) ** 2 for t, x in pairs]).mean()


@pytest.mark.extended
@only_in("full", "mse", "margin_mse", "listwise")
@pytest.mark.parametrize("objective", ["binary", "listwise", "mse", "margin_mse"])
def test_losses(smallest, objective):
    task = _reranker(smallest, objective=objective)
    expected = _loss(objective, _logits(task, PAIRS))
    for batch_size in (1, 2, 32):
        found = task.evaluate(LISTS, LABELS, batch_size=batch_size, return_dict=True, verbose=0)
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found.keys() == {"loss", "ndcg_10", "mrr_10"}
    before = task.predict(PAIRS)
    history = task.fit(LISTS, LABELS, batch_size=3, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert np.abs(task.predict(PAIRS) - before).max() > 1e-4


@pytest.mark.extended
def test_steps_end_after_a_whole_list(reranker):
    expected = reranker.predict(LISTS)
    for steps, count in ((1, 1), (2, 2), (3, 3)):  # two documents each, of lists of 2, 1 and 3
        found = reranker.predict(LISTS, batch_size=2, steps=steps)
        assert [len(scores) for scores in found] == [2, 1, 3][:count]
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected[:count]), 1e-5)


@pytest.mark.extended
def test_pairs_with_labels(reranker):
    expected = _loss("binary", _logits(reranker, PAIRS))
    slices = tf.data.Dataset.from_tensor_slices
    frame = pandas.DataFrame({**PAIRS, "label": FLAT})
    written = [str(x) for x in FLAT]
    for given in ((PAIRS, FLAT), (PAIRS, written), (frame,), (slices((PAIRS, FLAT)),)):
        found = reranker.evaluate(*given, return_dict=True, verbose=0)
        assert found["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.extended
def test_mistakes(smallest, reranker):
    with pytest.raises(ValueError, match=r"objective must be one of binary, .*, got 'hinge'"):
        bf.Reranker.from_pretrained(smallest, objective="hinge")
    with pytest.raises(ValueError, match="activation must be sigmoid or None, got 'tanh'"):
        bf.Reranker.from_pretrained(smallest, activation="tanh")
    task = _reranker(smallest, objective="listwise")
    with pytest.raises(ValueError, match="'listwise' compares documents: each query needs a list"):
        task.fit(PAIRS, FLAT, verbose=0)
    for y, message in (
        (LABELS[:2], "a list of labels for each list of documents"),
        ([[1], [1], [0, 0, 1]], "of the same length"),
        ([1, 1, 0], "a list of labels for each list of documents"),
        (None, "No labels were given"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(LISTS, y, verbose=0)
    with pytest.raises(ValueError, match="'query' and 'document'"):
        reranker.predict({"text": ["a"], "document": ["b"]})
    with pytest.raises(ValueError, match="There are 3 queries and 2 lists"):
        reranker.predict({"query": QUERIES, "document": DOCUMENTS[:2]})
    with pytest.raises(ValueError, match="Example 1 of 'document' must be a list, got 'b'"):
        reranker.predict({"query": QUERIES[:2], "document": [["a"], "b"]})


@pytest.mark.extended
def test_cross_entropy_takes_labels_from_0_to_1(smallest):
    """Its loss of others has no minimum. nDCG takes them."""
    task = _reranker(smallest)
    task.compile(run_eagerly=True)
    graded = [[3, 0], [1], [0, 2, 1]]
    assert task.evaluate(LISTS, graded, verbose=0, return_dict=True)["ndcg_10"] > 0
    with pytest.raises(ValueError, match=r"objective 'binary' must be from 0 to 1, got [23]"):
        task.fit(LISTS, graded, verbose=0)
    task.fit(LISTS, LABELS, validation_data=(LISTS, graded), verbose=0)
    task = _reranker(smallest, objective="listwise")
    task.compile(run_eagerly=True)
    task.fit(LISTS, graded, verbose=0)


@pytest.mark.extended
def test_activation(reranker):
    scores = reranker.predict(PAIRS)
    reranker.activation = None
    np.testing.assert_allclose(reranker.predict(PAIRS), _logits(reranker, PAIRS), atol=1e-5)
    reranker.activation = "sigmoid"
    np.testing.assert_array_equal(reranker.predict(PAIRS), scores)


@pytest.mark.extended
def test_files(reranker, tmp_path):
    """Those of sentence-transformers' CrossEncoder."""
    scores = reranker.predict(PAIRS)
    reranker.save_pretrained(tmp_path / "out")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text())
    assert config["id2label"] == {"0": "LABEL_0"}
    sigmoid = "torch.nn.modules.activation.Sigmoid"
    assert config.pop("sentence_transformers")["activation_fn"] == sigmoid

    def read(said, others=None):
        file.write_text(json.dumps({**config, **said}))
        for name, content in (others or {}).items():
            (tmp_path / "out" / name).write_text(json.dumps(content))
        return bf.Reranker.from_pretrained(tmp_path / "out")

    identity = "torch.nn.modules.linear.Identity"
    for said, activation in (
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": identity}}, None),
        ({"sbert_ce_default_activation_function": identity}, None),
        ({"sbert_ce_default_activation_function": sigmoid}, "sigmoid"),
    ):
        back = read(said)
        assert (back.activation, back.max_length) == (activation, 16)
    np.testing.assert_allclose(back.predict(PAIRS), scores, atol=1e-6)
    other = {"sentence_transformers": {"activation_fn": "my.code.Activation"}}
    with pytest.raises(CheckpointError, match=r"the activation 'my.code.Activation', expected"):
        read(other)
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    stored = {"activation_fn": identity, "prompts": {}}
    named = {"modules.json": modules, "config_sentence_transformers.json": stored}
    assert read({}, named).activation is None
    generative = {"sentence_bert_config.json": {"transformer_task": "text-generation"}}
    with pytest.raises(CheckpointError, match="'text-generation', expected 'sequence-class"):
        read({}, generative)
    (tmp_path / "out" / "sentence_bert_config.json").unlink()
    for wrong, message in (
        ({"prompts": ["a"]}, "prompts that are not a table"),
        ({"prompts": {"query": "q: "}}, "has prompts, expected none"),
        ({"activation_fn": ["x"]}, "has the activation"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read({}, {"config_sentence_transformers.json": wrong})
    plain = {"config_sentence_transformers.json": {}}
    with pytest.raises(CheckpointError, match="has the activation 3, expected"):
        read({"sentence_transformers": 3}, plain)
    short = read({}, {**plain, "sentence_bert_config.json": {"max_seq_length": 9}})
    assert (short.max_length, short.activation) == (9, "sigmoid")
    score = {"path": "1", "type": "sentence_transformers.cross_encoder.modules.LogitScore"}
    with pytest.raises(CheckpointError, match="modules Transformer, LogitScore, expected"):
        read({}, {"modules.json": [*modules, score]})


@pytest.mark.full
def test_export(reranker, tmp_path):
    served = load(reranker.export(tmp_path / "out"))
    texts = {name: np.array([t.encode() for t in v], object) for name, v in PAIRS.items()}
    scores = reranker.predict(PAIRS)
    np.testing.assert_allclose(served.run("serving_default", texts)["score"], scores, atol=2e-6)
    documents = np.array([[t.encode() for t in DOCUMENTS[2]] * 30], object)
    found = served.run("rank", {"query": texts["query"][-1:], "documents": documents})
    expected = reranker.rank(QUERIES[2], DOCUMENTS[2] * 30)
    np.testing.assert_allclose(found["score"][0], [each["score"] for each in expected], atol=2e-6)
    assert found["index"].dtype == np.int32
    reranker.save(tmp_path / "saved")
    np.testing.assert_array_equal(bf.load(tmp_path / "saved").predict(PAIRS), scores)
    reranker.export_tflite(tmp_path / "out.tflite", length=16)
