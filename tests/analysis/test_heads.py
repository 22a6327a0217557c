"""Heads that are off: nothing, or the mean of the values that a query may attend to."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import analysis
from bertfam_tf.analysis.heads import attentions, feed_forwards
from tests.selection import in_full
from tests.test_families import _build, _inputs

TEXTS = ["a good film", "bad", "it is a very dull plot"]
ATTENTION = [name for name in bf.families() if name not in ("bilstm", "elmo")]
LENGTH = 9
# Real tokens of three rows of that length; those of a family with left padding are at its end.
LENGTHS = (9, 5, 2)


def _recorded(layer, calls):
    """Appends the layer's inputs and outputs to a list; ``del layer.call`` ends it."""

    def call(x, **kwargs):
        found = type(layer).call(layer, x, **kwargs)
        calls.append((np.asarray(x), np.asarray(found)))
        return found

    layer.call = call


def _by_head(x, heads):
    """(batch, length, heads · size) or (batch, heads, length, size) to the latter."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _allowed(family, config, real):
    """bool (batch, queries, keys), from the papers: padding, what is to come, and windows."""
    length = real.shape[1]
    far = np.arange(length)[:, np.newaxis] - np.arange(length)
    allowed = np.ones_like(far, bool)
    if family in ("gpt", "gpt2", "transformer_xl"):
        allowed = far >= 0
    if family == "modernbert":  # layer 1, which is local
        allowed = np.abs(far) <= config.local_attention // 2
    return allowed & real[:, np.newaxis]


@pytest.mark.parametrize("family", in_full(ATTENTION, ("modernbert", "xlnet")))
def test_uniform_heads_are_means_of_the_values_they_may_attend_to(family):
    """By hand, for padding, causal masks, local windows, and scores with biases and distances."""
    local = {"local_attention": 4} if family == "modernbert" else {}
    index = 1 if local else 0
    backbone = _build(family, num_layers=2, **local)
    inputs = _inputs(backbone, rows=len(LENGTHS), length=LENGTH)
    real = np.arange(LENGTH) < np.array(LENGTHS)[:, np.newaxis]
    if family == "xlnet":
        real = real[:, ::-1]
    inputs["padding_mask"] = real.astype("int32")
    attention = attentions(backbone)[index]
    heads = attention.num_heads
    joint = getattr(attention, "query_key_value", None)
    source = attention.value if joint is None else joint
    values, contexts = [], []
    _recorded(source, values)
    _recorded(attention.output_dense, contexts)
    with analysis.without_heads(backbone, {index: [1]}, mode="uniform"):
        backbone(inputs, outputs="sequence_output")
    del source.call, attention.output_dense.call
    plain = []
    _recorded(attention.output_dense, plain)
    backbone(inputs, outputs="sequence_output")
    del attention.output_dense.call

    value = values[0][1] if joint is None else np.split(values[0][1], 3, axis=-1)[2]
    value = _by_head(value, heads)  # (batch, heads, keys, size)
    found, before = (_by_head(each[0][0], heads) for each in (contexts, plain))
    allowed = _allowed(family, backbone.config, real)
    for row, query in zip(*np.nonzero(real), strict=True):
        expected = value[row, 1][allowed[row, query]].mean(axis=0)
        np.testing.assert_allclose(found[row, 1, query], expected, rtol=1e-4, atol=1e-5)
    # The other heads of this layer are as before, and this head was not uniform.
    rest = [head for head in range(heads) if head != 1]
    if index == 0:
        np.testing.assert_allclose(found[:, rest], before[:, rest], rtol=1e-5, atol=1e-6)
    assert np.abs(found[:, 1] - before[:, 1])[0, -1].max() > 1e-3
    assert "_context" not in vars(attention)


def test_layers_that_share_an_attention_are_one():
    """Their heads are switched off together, so each is scored once."""
    backbone = _build("albert", num_layers=4, num_groups=2)
    assert len(attentions(backbone)) == len(feed_forwards(backbone)) == 2
    found = analysis.ablation(backbone, lambda: 0.0, verbose=False)
    assert [len(heads) for heads in found.heads] == [attentions(backbone)[0].num_heads] * 2


@pytest.fixture(scope="module")
def classifier(smallest):
    task = bf.TextClassifier.from_pretrained(smallest)
    draw = np.random.default_rng(0)
    for weight in task.backbone.weights:
        weight.assign(weight.numpy() + draw.normal(0, 0.3, weight.shape))
    return task


def _scores(task, texts=TEXTS):
    return np.stack([each["scores"] for each in task.predict(texts)])


@pytest.mark.extended
def test_uniform_heads_in_graphs_of_a_task(classifier):
    """``predict`` is traced again; a batch's padding changes nothing; then all is as before."""
    before = _scores(classifier)
    heads = {0: [0, 2]}
    with analysis.without_heads(classifier, heads, mode="uniform"):
        uniform = _scores(classifier)
        alone = np.concatenate([_scores(classifier, [text]) for text in TEXTS])
    np.testing.assert_allclose(uniform, alone, atol=1e-5)
    with analysis.without_heads(classifier, heads, mode="zero"):
        zero = _scores(classifier)
    assert np.abs(uniform - before).max() > 1e-3
    assert np.abs(uniform - zero).max() > 1e-3
    np.testing.assert_array_equal(_scores(classifier), before)


@pytest.mark.extended
def test_uniform_ablation(classifier):
    """Of each head, each layer and a pair; and in Keras' graph of ``evaluate``."""

    def score():
        return float(_scores(classifier, TEXTS[:1])[0, 0])

    def loss():
        return classifier.evaluate(TEXTS[:1], ["negative"], verbose=0, return_dict=True)["loss"]

    score(), loss()
    pair = [(0, 0), (0, 1)]
    options = {"mode": "uniform", "verbose": False}
    found = analysis.ablation(classifier, score, **options)
    pairs = analysis.pair_ablation(classifier, score, pair, **options)
    every = range(attentions(classifier.backbone)[0].num_heads)
    with analysis.without_heads(classifier, {0: [0, 1]}, mode="uniform"):
        assert score() - found.score == pytest.approx(pairs[0, 1], abs=1e-6)
        assert loss() == pytest.approx(-np.log(score()), abs=1e-4)
    with analysis.without_heads(classifier, {0: every}, mode="uniform"):
        assert score() - found.score == pytest.approx(found.layers[0], abs=1e-6)
    np.testing.assert_allclose(np.diag(pairs), found.heads[0][:2], atol=1e-6)
    zero = analysis.ablation(classifier, score, verbose=False)
    assert zero.score == pytest.approx(found.score, abs=1e-6)
    assert np.abs(zero.heads[0] - found.heads[0]).max() > 1e-4


@pytest.mark.extended
def test_uniform_heads_of_graphs_traced_before_are_refused(classifier):
    """They would answer as the whole model does, without a word."""

    @tf.function
    def answer(inputs):
        return classifier(inputs, training=False)

    inputs = classifier.preprocess({"text": tf.constant(TEXTS)})
    answer(inputs)
    with (
        pytest.raises(ValueError, match="traced before they were switched off"),
        analysis.without_heads(classifier, {0: [0]}, mode="uniform"),
    ):
        answer(inputs)
    for _ in range(2):  # graphs are traced again when the first call has another batch
        _scores(classifier)
    with pytest.raises(ValueError, match="pass the task in place of its backbone"):
        analysis.ablation(
            classifier.backbone,
            lambda: float(_scores(classifier)[0, 0]),
            mode="uniform",
            verbose=False,
        )
    with (
        pytest.raises(ValueError, match=r"Unknown mode .unifrom.\. Did you mean 'uniform'"),
        analysis.without_heads(classifier, {}, mode="unifrom"),
    ):
        pass
    with (
        pytest.raises(ValueError, match="Heads of layer 0 are from 0 to"),
        analysis.without_heads(classifier, {0: [99]}, mode="uniform"),
    ):
        pass
    assert all("_context" not in vars(each) for each in attentions(classifier.backbone))
