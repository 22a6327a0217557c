"""Generation on token ids: comparison with the reference, the cache, sampling."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import generation, heads
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.generation import Options
from tests.plain_decoder import PlainDecoder
from tests.selection import in_full

GOLDENS = Path(__file__).parent.parent / "goldens"
FILES = sorted(GOLDENS.glob("*/generation/tokens.npz"))
ROWS = tf.TensorSpec([None, None], tf.int32)


def make_step(directory, kind=generation.decoder):
    """The ``Step`` of a checkpoint with a language model head."""
    backbone = bf.load_backbone(directory)
    any_order = "target_mapping" in backbone.input
    head = heads.build(backbone, "permutation_lm" if any_order else "causal_lm")
    Checkpoint(directory).fill_head(head, head.name.removesuffix("_head"))
    return kind(backbone, head.logits)


def generate(step, token_ids, padding_mask, stop_ids=(), seed=None, **options):
    """New tokens, generated in one graph."""

    @tf.function(input_signature=[ROWS, ROWS], autograph=False)
    def run(tokens, mask):
        return generation.generate(step, tokens, mask, Options(**options), stop_ids, 0, seed)

    return run(token_ids.astype("int32"), padding_mask.astype("int32")).numpy()


@pytest.mark.extended
@pytest.mark.parametrize(
    "file",
    in_full(FILES, [file for file in FILES if file.parts[-3] == "gpt2"]),
    ids=lambda file: file.parts[-3],
)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.full)])
def test_tokens_are_the_references(file, every):
    with np.load(file) as stored:
        step, cases = make_step(file.parent), json.loads(str(stored["cases"]))
        assert len(cases) >= 10
        for i, case in list(enumerate(cases))[::every]:
            found = generate(step, stored["token_ids"], stored["padding_mask"], **case)
            np.testing.assert_array_equal(found, stored[f"tokens_{i}"], err_msg=str(case))


def test_there_are_references_for_each_kind_of_decoder():
    kinds = {type(make_step(file.parent)).__name__ for file in FILES}
    assert kinds == {"CachedDecoder", "PermutationDecoder"}


def test_the_references_take_every_path():
    """Prompts of several lengths, early stops, penalties that change the choice."""
    for file in FILES:
        with np.load(file) as stored:
            cases = json.loads(str(stored["cases"]))
            tokens = [stored[f"tokens_{i}"] for i in range(len(cases))]
            assert len(set(stored["padding_mask"].sum(axis=1))) == len(stored["token_ids"])
        assert any((t[:, -1] == 0).any() for t in tokens)
        assert len({t.tobytes() for t in tokens}) > len(tokens) // 2


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt", "gpt2"])
def test_the_cache_changes_nothing(family):
    file = GOLDENS / family / "generation" / "tokens.npz"
    with np.load(file) as stored:
        ids, mask = stored["token_ids"], stored["padding_mask"]
    plain, cached = make_step(file.parent, PlainDecoder), make_step(file.parent)
    seed = tf.constant([1, 2])
    for options in (
        {},
        {"num_beams": 3},
        {"temperature": 1.5, "seed": seed},
        {"top_p": 0.9, "top_k": 8, "seed": seed},
    ):
        a, b = (generate(s, ids, mask, max_new_tokens=15, **options) for s in (plain, cached))
        np.testing.assert_array_equal(a, b)


# Filters --------------------------------------------------------------------------------------


def _kept(values, **options):
    found = generation.filter_logits(tf.constant([values]), Options(**options))[0].numpy()
    return [i for i, value in enumerate(found) if np.isfinite(value)]


def test_filters():
    logits = np.log([0.1, 0.4, 0.05, 0.3, 0.15]).astype("float32")
    assert _kept(logits, temperature=3.0) == [0, 1, 2, 3, 4]
    assert _kept(logits, top_k=2) == [1, 3]
    assert _kept(logits, top_k=9) == [0, 1, 2, 3, 4]
    assert _kept(logits, top_p=0.69) == [1, 3]
    assert _kept(logits, top_p=0.71) == [1, 3, 4]
    assert _kept(logits, top_p=1e-6) == [1]
    assert _kept(logits, top_p=1.0) == [0, 1, 2, 3, 4]
    assert _kept(logits, min_p=0.3) == [1, 3, 4]
    assert _kept(logits, min_p=1.0) == [1]
    assert _kept(logits, temperature=0.5, min_p=0.3) == [1, 3]
    # Of the two tokens that top-k keeps, the first has 4/7.
    assert _kept(logits, top_k=2, top_p=0.55) == [1]
    assert _kept([1.0, 1.0, 0.0], top_k=1) == [0, 1]
    assert _kept([1.0, 1.0, 0.0], min_p=1.0) == [0, 1]


def test_draws_follow_the_distribution():
    logits = tf.constant([np.log([0.1, 0.4, 0.05, 0.3, 0.15])], tf.float32)
    many = tf.repeat(logits, 20_000, axis=0)
    options = Options(temperature=0.5, top_k=3)
    drawn = generation.sample(many, options, tf.constant([1, 2]), 0).numpy()
    expected = np.array([0, 0.4, 0, 0.3, 0.15]) ** 2
    found = np.bincount(drawn, minlength=5) / len(drawn)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.015)
    again = generation.sample(many, options, tf.constant([1, 2]), 0)
    np.testing.assert_array_equal(again, drawn)
    later = generation.sample(many, options, tf.constant([1, 2]), 1)
    assert (later != drawn).numpy().any()


# Repetition -----------------------------------------------------------------------------------

TABLE = np.random.default_rng(3).normal(0, 2, (5, 5)).astype("float32")


def _bigrams(token_ids, padding_mask, state):
    """A ``Step`` whose logits depend on the last token only."""
    return tf.gather(TABLE, token_ids[:, -1]), ()


def _scores(tokens, penalty, size, log_probabilities=False):
    """By the definitions of both options."""
    scores = TABLE[tokens[-1]].astype("float64")
    scores -= np.log(np.exp(scores).sum()) if log_probabilities else 0
    for token in set(tokens):
        scores[token] *= penalty if scores[token] < 0 else 1 / penalty
    for i in range(len(tokens) - size + 1 if size else 0):
        if tokens[i : i + size - 1] == tokens[len(tokens) - size + 1 :]:
            scores[tokens[i + size - 1]] = -np.inf
    return scores


REPETITIONS = [(2.0, 0), (1.5, 2), (0.5, 3)]


def test_repetition():
    """Also in the prompt, whose padding is no token 0."""
    prompts, found = [[1, 2, 1], [4], [0, 3]], []
    ids = np.array([[1, 2, 1], [0, 0, 4], [0, 0, 3]])
    mask = np.array([[1, 1, 1], [0, 0, 1], [0, 1, 1]])
    for penalty, size in REPETITIONS:
        expected = [list(prompt) for prompt in prompts]
        for tokens in expected * 8:
            tokens.append(int(np.argmax(_scores(tokens, penalty, size))))
        options = dict(repetition_penalty=penalty, no_repeat_ngram_size=size)
        found.append(generate(_bigrams, ids, mask, max_new_tokens=8, **options).tolist())
        assert found[-1] == [tokens[-8:] for tokens in expected]
    assert len({str(tokens) for tokens in found}) == len(REPETITIONS)


@pytest.mark.extended
def test_repetition_in_beam_search():
    """As many beams as there are continuations find the best one."""
    prompt, (penalty, size) = (1, 2), REPETITIONS[1]

    def score(new):
        texts = [(*prompt, *new[:i]) for i in range(len(new))]
        return sum(_scores(x, penalty, size, True)[y] for x, y in zip(texts, new, strict=True))

    best = max(itertools.product(range(5), repeat=3), key=score)
    options = dict(repetition_penalty=penalty, no_repeat_ngram_size=size, num_beams=50)
    ids = np.array([prompt])
    found = generate(_bigrams, ids, np.ones_like(ids), max_new_tokens=3, **options)
    assert tuple(found[0]) == best


@pytest.mark.parametrize("num_beams", [1, pytest.param(3, marks=pytest.mark.extended)])
def test_no_stop_tokens_at_first(num_beams):
    ids = np.array([[4], [0]])
    options = dict(max_new_tokens=6, num_beams=num_beams)
    stops = generate(_bigrams, ids, np.ones_like(ids), **options)[:, 0].tolist()
    for count in (0, 4):
        tokens = generate(_bigrams, ids, np.ones_like(ids), stops, min_new_tokens=count, **options)
        assert not np.isin(tokens[:, :count], stops).any()
        # The best beam may have none at all.
        stopped = tokens.shape[1] == max(count, 1) or np.isin(tokens[:, count:], stops).any()
        assert stopped or num_beams > 1


def test_options_that_are_no_finite_numbers():
    for name, value in (("length_penalty", float("nan")), ("temperature", float("inf"))):
        with pytest.raises(ValueError, match=name):
            Options(**{name: value})
    with pytest.raises(ValueError, match="num_beams must be an integer, got True"):
        Options(num_beams=True)
    with pytest.raises(ValueError, match=r"temperature must be a number, got '0\.5'"):
        Options(temperature="0.5")
