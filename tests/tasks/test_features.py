"""Heads that read several layers: BERT's table 7 (arXiv 1810.04805), and ELMo's mix."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads, registry
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.models import unpadding
from bertfam_tf.training import tuning
from tests.selection import in_full, only_in
from tests.test_families import _build, _inputs

TAGS = ["O", "B-X", "I-X"]
TEXTS = ["a good film", "bad", "it is a very dull plot"]
LABELS = ["O O B-X", "B-X", "O O B-X I-X O O"]
FAMILIES = [name for name in bf.families() if "tokens" in registry.get(name).heads]
KINDS = ("concatenate", "sum", "mix")


def _expected(states, kind, head):
    if kind == "concatenate":
        return np.concatenate(states, axis=-1)
    if kind == "sum":
        return np.sum(states, axis=0)
    scalars, gamma = (np.asarray(each) for each in head.combination.mix.weights)
    weights = np.exp(scalars) / np.exp(scalars).sum()
    return gamma * sum(weight * state for weight, state in zip(weights, states, strict=True))


@only_in("extended", "mix-albert", "mix-bert", "mix-xlnet")
@pytest.mark.parametrize("family", in_full(FAMILIES, ("bert", "albert", "xlnet", "elmo")))
@pytest.mark.parametrize("kind", in_full(KINDS, ["mix"]))
def test_every_family_has_features(family, kind):
    """By hand, with padding and without it; the mix is trained, and layers above it are not."""
    backbone = _build(family, num_layers=3)
    head = heads.build(backbone, "tokens", 3, layers=(2, 1), combine=kind)
    if kind == "mix":
        for weight, value in zip(head.combination.mix.weights, ([0.5, -1.0], 0.75), strict=True):
            weight.assign(value)
    inputs = _inputs(backbone, rows=3, length=6)
    inputs["padding_mask"][1, 4:] = 0
    states = [np.asarray(each) for each in backbone(inputs)["hidden_states"]]
    features = _expected([states[2], states[1]], kind, head)
    expected = head.logits(features)
    real = inputs["padding_mask"] > 0
    for left_out in (False, True):
        with unpadding(left_out), tf.GradientTape() as tape:
            logits = head(backbone(inputs, outputs=head.reads))
            loss = tf.reduce_sum(tf.boolean_mask(logits, real) ** 2)
        np.testing.assert_allclose(logits[real], expected[real], rtol=1e-4, atol=1e-4)
        variables = [
            *head.combination.weights,
            *backbone.weights_of(head.reads, layers=head.layers),
        ]
        if left_out:
            continue
        found = tape.gradient(loss, [each.value for each in variables])
        assert len(variables) < len(backbone.weights) + len(head.combination.weights)
        mixed = found[: len(head.combination.weights)]
        assert all(np.abs(each).max() > 1e-6 for each in mixed)
        paths = [v.path for v, each in zip(variables, found, strict=True) if each is None]
        assert not [path for path in paths if "position" not in path and "segment" not in path]


@pytest.fixture(scope="module")
def tagger(smallest):
    """One whose mix and head are trained on frozen layers."""
    task = bf.TokenTagger.from_pretrained(
        smallest, TAGS, feature_layers=(-2, -1), combine_layers="mix", dropout=0.0
    )
    tuning.freeze(task.backbone)
    task.compile(keras.optimizers.Adam(0.1))
    before = [weight.numpy() for weight in task.backbone.weights]
    task.fit(TEXTS * 4, LABELS * 4, batch_size=4, epochs=2, verbose=0)
    for value, weight in zip(before, task.backbone.weights, strict=True):
        np.testing.assert_array_equal(weight, value)
    return task


def _answers(task):
    return [[(each["tag"], each["score"]) for each in words] for words in task.predict(TEXTS)]


def _agree(found, expected):
    assert [[tag for tag, _ in row] for row in found] == [[t for t, _ in row] for row in expected]
    for row, other in zip(found, expected, strict=True):
        np.testing.assert_allclose([x for _, x in row], [x for _, x in other], atol=1e-5)


@pytest.mark.extended
def test_the_mix_is_trained_on_frozen_layers_and_stored(tagger, tmp_path):
    scalars, gamma = (np.asarray(each) for each in tagger.head.combination.weights)
    assert np.ptp(scalars) > 1e-3
    assert abs(gamma - 1) > 1e-3
    tagger.save(tmp_path / "saved")
    again = bf.load(tmp_path / "saved")
    assert (again.feature_layers, again.combine_layers) == ((-2, -1), "mix")
    _agree(_answers(again), _answers(tagger))
    _agree(_answers(bf.TokenTagger.from_pretrained(tmp_path / "saved")), _answers(tagger))
    with pytest.warns(UserWarning, match="initialized at random: .* reads other layers"):
        bf.TokenTagger.from_pretrained(tmp_path / "saved", feature_layers=(0, 1))
    with pytest.raises(CheckpointError, match="the tokens head reads the layers 0, 1"):
        tagger.save_pretrained(tmp_path / "published")


@pytest.mark.full
def test_exports_answer_as_the_task(tagger, tmp_path):
    served = tf.saved_model.load(str(tagger.export(tmp_path / "export"))).signatures
    found = served["serving_default"](text=tf.constant(TEXTS))
    for row, expected in zip(range(len(TEXTS)), _answers(tagger), strict=True):
        count = int(found["count"][row])
        assert [tag.decode() for tag in found["tags"][row, :count].numpy()] == [
            tag for tag, _ in expected
        ]
        np.testing.assert_allclose(
            found["scores"][row, :count], [score for _, score in expected], atol=1e-5
        )
    # It is compared with the task before it is written.
    file = tagger.export_tflite(tmp_path / "m.tflite", inputs="ids", length=12)
    assert file.stat().st_size > 0


@pytest.mark.full
def test_spans_of_features(smallest, tmp_path):
    task = bf.SpanQA.from_pretrained(smallest, max_length=20, feature_layers=[0, 1], dropout=0.0)
    assert task.head.parts[-1].kernel.shape[0] == 2 * task.backbone.config.hidden_size
    data = {"question": ["what film ?"], "context": ["a good film"]}
    task.fit(data, {"answer": ["film"], "answer_start": [7]}, verbose=0)
    task.save(tmp_path / "saved")
    again = bf.load(tmp_path / "saved")
    first, second = (each.predict(data)[0]["n_best"] for each in (task, again))
    assert first == second


@pytest.mark.extended
def test_options_that_do_not_fit_are_refused(tiny):
    def tagger(**options):
        bf.TokenTagger.from_pretrained(tiny, TAGS, **options)

    for options, error in (
        ({"combine_layers": "mix"}, "'mix' needs feature_layers, such as 'all'"),
        ({"feature_layers": "last"}, "must be numbers of layers or 'all', got 'last'"),
        ({"feature_layers": [0.5]}, "must be numbers of layers or 'all'"),
        ({"feature_layers": []}, "must be numbers of layers or 'all'"),
        ({"feature_layers": [9]}, "from 0, the embeddings' output, to 3, or from -1 to -4, got 9"),
        ({"feature_layers": [-1, 3]}, "non-empty and distinct"),
        ({"feature_layers": [1], "combine_layers": "mixed"}, "Did you mean 'mix'"),
    ):
        with pytest.raises(ValueError, match=error):
            tagger(**options)
    backbone = bf.build("bert", "tiny", num_layers=1, hidden_size=16, vocab_size=50)
    with pytest.raises(ValueError, match="reads pooled_output; layers are for heads that read"):
        heads.build(backbone, "sequence", 2, layers=[1])
    wider = bf.build("albert", "tiny", num_layers=1, hidden_size=32, embedding_size=16)
    if wider.output["hidden_states"][0].shape[-1] != 32:
        with pytest.raises(ValueError, match="Only layers of the same width can be added"):
            heads.build(wider, "tokens", 2, layers=[0, 1], combine="mix")
