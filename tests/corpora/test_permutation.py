"""Permutation language modeling: who sees what, to the last gradient."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.corpora import Masking, Permutation, ngrams
from bertfam_tf.corpora.masking import ORDER, Numbers, token_index
from bertfam_tf.objectives import PermutedTokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.text import WordPieceTokenizer
from bertfam_tf.training.learner import Learner
from tests.corpora.test_masking import CLS, PAD, PIECES, SEP, _rows, _seeds


@pytest.fixture(scope="module")
def permutation():
    return Permutation(Masking(WordPieceTokenizer(PIECES), 1 / 4, "word", ngrams(5)))


def test_padding_on_the_left_changes_no_order(permutation):
    ids, mask = _rows(9, length=20)
    wider = (np.pad(x, [[0, 0], [3, 0]]) for x in (ids, mask))
    found, wanted = permutation(*wider, _seeds(9)), permutation(ids, mask, _seeds(9))
    np.testing.assert_array_equal(found.targets, wanted.targets)
    real = mask[:, None] * mask[:, :, None]
    np.testing.assert_array_equal(found.perm_mask[:, 3:, 3:] * real, wanted.perm_mask * real)


def test_order(permutation):
    """The masks are those of one order of the predicted and the special tokens."""
    ids, mask = _rows(40, length=20)
    found = permutation(ids, mask, _seeds(40))
    predicted = found.target_mapping.numpy().sum(1) > 0
    assert predicted.any()
    assert not (predicted & (np.isin(ids, [CLS, SEP, PAD]) | (mask == 0))).any()
    masked = permutation.masking(ids, mask, _seeds(40))
    np.testing.assert_array_equal(found.targets, masked.targets)
    hidden = found.perm_mask.numpy() > 0
    ordered = predicted | np.isin(ids, [CLS, SEP, PAD])
    assert not np.swapaxes(hidden, 1, 2)[~ordered].any()  # all attend to the others
    for row in range(40):
        # The others attend to none in the order; these to as many as are before them.
        seen = (~hidden[row] & ordered[row]).sum(1)
        assert (seen[~ordered[row]] == 0).all()
        itself = ordered[row] & ~predicted[row]
        places = seen[ordered[row]] - itself[ordered[row]]
        assert sorted(places) == list(range(ordered[row].sum()))
        assert (np.diagonal(hidden[row]) == predicted[row]).all()


def _published_masks(predicted, special, index):
    """Masks of one example as XLNet's published ``_local_perm`` defines them, pair by pair.

    Args:
        predicted, special: bool (length,).
        index: int (length,), the place of each position in a permutation of all.

    Returns:
        int (length, length) and (predictions, length): ``perm_mask`` and ``target_mapping``.
    """
    length = len(index)
    hidden = np.zeros((length, length), int)
    for query in range(length):
        place = index[query] if predicted[query] or special[query] else -1
        # All but predicted tokens also see what has their own place, which is themselves.
        first_hidden = place if predicted[query] else place + 1
        for key in range(length):
            in_order = predicted[key] or special[key]
            hidden[query, key] = in_order and index[key] >= first_hidden
    return hidden, np.eye(length, dtype=int)[predicted]


def test_masks_are_those_of_the_published_code(permutation):
    rng = np.random.default_rng(5)
    ids = rng.integers(5, len(PIECES), (20, 24)).astype("int32")
    ids[:, [9, 22]], ids[:, 23] = SEP, CLS  # XLNet's layout: a, b, and both at their ends
    mask, seeds = np.ones_like(ids), _seeds(20, 7)
    found = permutation(ids, mask, seeds)
    draws = Numbers(seeds).positions(ORDER, token_index(tf.constant(mask > 0))).numpy()
    for row in range(20):
        predicted = found.target_mapping.numpy()[row].sum(0) > 0
        index = np.argsort(np.argsort(draws[row]))
        hidden, mapping = _published_masks(predicted, np.isin(ids[row], [SEP, CLS]), index)
        np.testing.assert_array_equal(found.perm_mask[row], hidden)
        real = found.weights.numpy()[row] > 0
        np.testing.assert_array_equal(found.target_mapping[row][real], mapping)
        np.testing.assert_array_equal(found.targets[row][real], ids[row][predicted])


def test_gradients_are_zero_for_what_must_not_be_seen(permutation):
    ids, mask = _rows(3, length=12, seed=3)
    found = permutation(ids, mask, _seeds(3))
    backbone = bf.build(
        "xlnet", "tiny", vocab_size=len(PIECES), hidden_size=8, num_layers=2, num_heads=2,
        intermediate_size=16, dropout=0.0, attention_dropout=0.0, dtype="float64",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for weight in backbone.weights:
        weight.assign_add(rng.normal(0, 0.5, weight.shape))
    given = {
        "token_ids": ids, "padding_mask": mask,
        "perm_mask": found.perm_mask, "target_mapping": found.target_mapping,
    }  # fmt: skip
    hidden, predicted = found.perm_mask.numpy() > 0, found.target_mapping.numpy()
    checked = 0
    for prediction in range(predicted.shape[1]):
        with tf.GradientTape() as tape:
            embedding = backbone.parts["token_embedding"]
            call, held = embedding.call, []

            def watched(tokens, call=call, held=held, tape=tape):
                held.append(call(tokens))
                tape.watch(held[-1])
                return held[-1]

            embedding.call = watched
            try:
                total = tf.reduce_sum(backbone(given)["query_output"][:, prediction] ** 2)
            finally:
                embedding.call = call
        gradient = np.abs(tape.gradient(total, held[0]).numpy()).sum(-1)  # (batch, length)
        for row in range(3):
            if not predicted[row, prediction].any():
                continue
            position = predicted[row, prediction].argmax()
            # What it may attend to, may itself have attended to nothing that is hidden from it.
            unseen = hidden[row, position] | (mask[row] == 0)
            assert (gradient[row][unseen] == 0).all()
            assert (gradient[row][~unseen] > 0).all()
            checked += unseen.sum()
    assert checked > 5  # not for want of cases


@pytest.mark.full
def test_learning(permutation):
    ids, mask = _rows(64, length=16, seed=1)
    found = permutation(ids, mask, _seeds(64))
    backbone = bf.build(
        "xlnet", "tiny", vocab_size=len(PIECES), hidden_size=16, num_layers=1, num_heads=2,
        intermediate_size=32, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    names = ("token_ids", "padding_mask", "perm_mask", "target_mapping")
    inputs = {name: backbone.input[name] for name in names}
    head = heads.build(backbone, "permutation_lm")
    learner = Learner(inputs, backbone(inputs), [PermutedTokens(head)])
    learner.compile("adam")
    x = dict(zip(names, (ids, mask, found.perm_mask, found.target_mapping), strict=True))
    batch = Batch(x, {"token_ids": found.targets}, found.weights)
    logits = head(backbone(x)).numpy()
    losses = -np.take_along_axis(
        tf.nn.log_softmax(logits).numpy(), found.targets.numpy()[..., None], -1
    )[..., 0]
    expected = (losses * found.weights.numpy()).sum() / found.weights.numpy().sum()
    data = tf.data.Dataset.from_tensors((x, batch.targets, batch.weights))
    assert learner.evaluate(data, verbose=0, return_dict=True)["loss"] == pytest.approx(
        expected, rel=1e-5
    )
    history = learner.fit(data.repeat(12), verbose=0, shuffle=False).history
    assert learner.evaluate(data, verbose=0, return_dict=True)["loss"] < expected
    assert history["loss"]
