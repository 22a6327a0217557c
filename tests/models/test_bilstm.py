"""BiLSTMs beside an LSTM in NumPy, on perturbed weights in float64."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.training import optimizers
from tests.parity import TOLERANCE, relative
from tests.selection import in_full

UNITS = 5
LENGTHS = np.array([6, 2, 1, 4, 0])
ON_THE_RIGHT = np.arange(6) < LENGTHS[:, None]
MASKS = {
    "right": ON_THE_RIGHT,
    "left": ON_THE_RIGHT[:, ::-1],
    "gaps": ON_THE_RIGHT & (np.arange(6) != 2),
}
TOKENS = np.random.default_rng(1).integers(0, 20, (5, 6)).astype("int32")


def _build(**overrides):
    shape = dict(vocab_size=20, embedding_size=7, hidden_size=2 * UNITS, num_layers=2)
    backbone = bf.build("bilstm", "tiny", dtype="float64", **{**shape, **overrides})
    rng = np.random.default_rng(0)
    for variable in backbone.weights:
        variable.assign_add(rng.normal(0, 0.3, variable.shape))
    return backbone


def _given(mask):
    return {"token_ids": TOKENS, "padding_mask": mask.astype("int32")}


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _lstm(x, kernel, recurrent_kernel, bias):
    """States (length, units) of one text without padding, x (length, width)."""
    hidden = cell = np.zeros(UNITS)
    states = []
    for vector in x:
        i, f, o, g = np.split(vector @ kernel + hidden @ recurrent_kernel + bias, 4)
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        hidden = _sigmoid(o) * np.tanh(cell)
        states.append(hidden)
    return np.array(states).reshape(-1, UNITS)


def _expected(backbone, mask):
    """Hidden states, zeros at padding, and pooled output; each text is computed by itself."""
    weights = {variable.path: variable.numpy() for variable in backbone.weights}
    states = [np.zeros((5, 6, 7)), np.zeros((5, 6, 10)), np.zeros((5, 6, 10))]
    pooled = np.zeros((5, 10))
    for row, real in enumerate(mask):
        x = weights["token_embedding/embeddings"][TOKENS[row, real]]
        states[0][row, real] = x
        for i in range(2):
            kernels, biases = (
                np.split(weights[f"layer_{i}/input/{name}"], 2, axis=-1)
                for name in ("kernel", "bias")
            )
            one, other = (weights[f"layer_{i}/{name}_kernel"] for name in ("forward", "backward"))
            forward = _lstm(x, kernels[0], one, biases[0])
            backward = _lstm(x[::-1], kernels[1], other, biases[1])[::-1]
            x = states[i + 1][row, real] = np.concatenate([forward, backward], axis=-1)
        if real.any():
            pooled[row] = [*forward[-1], *backward[0]]
    return states, pooled


@pytest.mark.parametrize("mask", in_full(MASKS, ["gaps"]))
def test_outputs_are_those_of_an_lstm_on_each_text(mask):
    backbone, mask = _build(), MASKS[mask]
    states, pooled = _expected(backbone, mask)
    eager = backbone(_given(mask))
    graph = tf.function(backbone, autograph=False)(_given(mask))
    for outputs in (eager, graph):
        embeddings = outputs["hidden_states"][0] * mask[..., None]
        for ours, theirs in zip([embeddings, *outputs["hidden_states"][1:]], states, strict=True):
            assert relative(ours, theirs) < TOLERANCE
        assert relative(outputs["pooled_output"], pooled) < TOLERANCE


def test_gradients_are_differences():
    """Of the loss in a random direction of each weight, central differences."""
    backbone, given = _build(num_layers=1), _given(MASKS["gaps"])

    @tf.function(autograph=False)
    def loss():
        outputs = backbone(given, training=False)
        return sum(tf.reduce_sum(outputs[x] ** 3) for x in ("sequence_output", "pooled_output"))

    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, [weight.value for weight in backbone.weights])
    rng = np.random.default_rng(2)
    for weight, gradient in zip(backbone.weights, gradients, strict=True):
        before, direction = weight.numpy(), rng.normal(0, 1, weight.shape)
        values = []
        for step in (1e-5, -1e-5):
            weight.assign(before + step * direction)
            values.append(float(loss()))
        weight.assign(before)
        expected = (values[0] - values[1]) / 2e-5
        found = np.sum(tf.convert_to_tensor(gradient).numpy() * direction)
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=weight.path)


def test_padding_on_either_side_changes_no_pooled_output():
    backbone = _build()
    plain = backbone(_given(np.ones((5, 6))))["pooled_output"]
    for sides in ((0, 3), (3, 0), (2, 1)):
        padded = {k: np.pad(v, ((0, 0), sides)) for k, v in _given(np.ones((5, 6))).items()}
        padded["token_ids"][padded["padding_mask"] == 0] = 9
        found = backbone(padded, outputs="pooled_output")["pooled_output"]
        np.testing.assert_allclose(found, plain, rtol=1e-12, atol=1e-12)


def test_forget_gates_start_open():
    backbone = bf.build("bilstm", "tiny", hidden_size=4)
    bias = backbone.get_layer("layer_0").get_weights()[-1]
    np.testing.assert_array_equal(bias, [0, 0, 1, 1, 0, 0, 0, 0] * 2)


def test_the_classifier_of_the_paper():
    """A ReLU layer on the final states: logits by hand."""
    backbone = _build(intermediate_size=8)
    head = heads.build(backbone, "sequence", 3)
    kernel, bias, out_kernel, out_bias = head.get_weights()
    assert kernel.shape == (10, 8)
    outputs = backbone(_given(MASKS["left"]))
    pooled = np.asarray(outputs["pooled_output"])
    expected = np.maximum(pooled @ kernel + bias, 0) @ out_kernel + out_bias
    np.testing.assert_allclose(head(outputs), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"hidden_size": 5}, "hidden_size must be even, half for each direction, got 5"),
    ],
)
def test_configs_that_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        _build(**fields)


@pytest.mark.full
def test_trained_saved_and_exported(tiny, tmp_path):
    tokenizer = bf.load_tokenizer(tiny)
    backbone = bf.build("bilstm", "tiny", vocab_size=tokenizer.vocab_size)
    task = bf.TextClassifier(backbone, tokenizer, ["no", "yes"], pair=False)
    texts, labels = ["a good film", "a bad film", "", "not good , bad"] * 4, ["yes", "no"] * 8
    task.compile(optimizers.adamw(0.01, warmup=0))
    task.fit(texts, labels, epochs=15, verbose=0)
    answers = task.predict(texts)
    assert [answer["label"] for answer in answers[:2]] == labels[:2]
    task.save(tmp_path / "task")
    expected = [answer["scores"] for answer in answers]
    again = bf.load(tmp_path / "task").predict(texts)
    np.testing.assert_array_equal([answer["scores"] for answer in again], expected)
    path = task.export(tmp_path / "served")
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    np.testing.assert_allclose(served(text=tf.constant(texts))["scores"], expected, atol=1e-6)
