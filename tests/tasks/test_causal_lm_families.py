"""Language models with a memory, and of any order, from raw text."""

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import generation
from bertfam_tf.generation import Options
from bertfam_tf.text import WordTokenizer
from tests.plain_decoder import PlainDecoder
from tests.seeding import seed

WORDS = WordTokenizer(["<eos>", "<unk>", *(f"w{i}" for i in range(28))])
TEXTS = ["w1 w2 w3 w9 w11", "w7", " ".join(f"w{i}" for i in range(12))]
SHAPE = dict(vocab_size=30, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
FAMILIES = {
    "transformer_xl": dict(
        cutoffs=[8], embedding_size=16, head_size=8, mem_len=64, same_length=False, clamp_len=-1
    ),
    "xlnet": {},
}
each = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def models():
    return {family: _model(family) for family in FAMILIES}


def _model(family, **overrides):
    seed(1)
    quiet = dict(dropout=0.0, attention_dropout=0.0)
    backbone = bf.build(family, "tiny", **{**SHAPE, **FAMILIES[family], **quiet, **overrides})
    for i, variable in enumerate(backbone.weights):
        variable.assign_add(np.random.default_rng(i).normal(0, 0.5, variable.shape))
    return bf.CausalLM(backbone, WORDS)


@pytest.mark.full
@each
def test_rows_together_and_alone(models, family):
    model = models[family]
    for options in ({}, {"num_beams": 2}):
        together = model.generate(TEXTS, max_new_tokens=8, **options)
        assert together == [model.generate(t, max_new_tokens=8, **options) for t in TEXTS]
        assert any(together)


@pytest.mark.extended
def test_generation_ignores_the_part_of_a_segment_that_pretraining_reuses(models):
    model = _model("xlnet", reuse_len=4)
    together = model.generate(TEXTS, max_new_tokens=8, stop_tokens=[])
    assert together == [model.generate(t, max_new_tokens=8, stop_tokens=[]) for t in TEXTS]
    assert together == models["xlnet"].generate(TEXTS, max_new_tokens=8, stop_tokens=[])


@pytest.mark.full
@each
def test_a_token_s_probability_is_of_those_before_it(models, family):
    model = models[family]
    ids = np.arange(2, 12)[None].astype("int32")

    def log_probabilities(ids):
        logits = model({**_plain(model, ids)}, training=False)
        return keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))

    whole = log_probabilities(ids)
    for n in range(1, 9):
        other = ids.copy()
        other[:, n + 1 :] = 29 - other[:, n + 1 :]
        np.testing.assert_allclose(log_probabilities(other)[:, :n], whole[:, :n], atol=1e-5)
        other[:, 0] += 1
        assert np.abs(log_probabilities(other)[:, :n] - whole[:, :n]).max() > 1e-4


def _plain(model, ids):
    given = model.backbone.complete({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    return {name: given[name] for name in model.backbone.token_inputs}


@pytest.mark.full
def test_a_memory_that_reaches_far_enough_changes_nothing(models):
    model = models["transformer_xl"]
    ids = WORDS.tokenize([TEXTS[2]]).to_tensor()
    head = model.head
    step = PlainDecoder(model.backbone, head.logits)
    plain = generation.generate(step, ids, np.ones_like(ids), Options(max_new_tokens=9), (0,))
    text = WORDS.detokenize(plain).numpy()[0].decode().partition(" <eos>")[0]
    assert text == model.generate(TEXTS[2], max_new_tokens=9)


@pytest.mark.full
@each
def test_fit_learns_what_follows(family, tmp_path):
    model = _model(family)
    model.compile(keras.optimizers.Adam(0.02))
    before = model.perplexity(["w3 w4 w5 w6"])
    model.fit(["w3 w4 w5 w6"] * 160, batch_size=4, verbose=0)
    after = model.perplexity(["w3 w4 w5 w6"])
    assert after < 2 < before
    assert model.generate("w3 w4", max_new_tokens=2) == "w5 w6"
    model.save(tmp_path / "model")
    assert bf.load(tmp_path / "model").generate("w3 w4", max_new_tokens=2) == "w5 w6"


def test_who_has_no_next_token():
    backbone = bf.build("bert", "tiny", vocab_size=30)
    with pytest.raises(ValueError, match="bert is not causal"):
        bf.CausalLM(backbone, WORDS)
