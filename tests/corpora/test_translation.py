"""Inputs of translation language modeling: ids, positions and languages by hand, and masks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.corpora import Masking, TranslationPairs
from bertfam_tf.models import unpadding
from bertfam_tf.objectives import MaskedTokens, TranslatedTokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.text import BPETokenizer, Layout, SpecialTokens

PIECES = ["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>", *"abcdefgh"]
END, PAD, MASK = 1, 2, 5
SHAPE = dict(
    vocab_size=len(PIECES), hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24,
    max_positions=16, num_languages=3, dropout=0.0, attention_dropout=0.0, pad_id=PAD,
)  # fmt: skip
FIRST = tf.ragged.constant([[6, 7, 8], [9], [10, 11]], dtype="int32")
SECOND = tf.ragged.constant([[12, 13], [6, 7, 8, 9], []], dtype="int32", ragged_rank=1)


@pytest.fixture(scope="module")
def tokenizer():
    special = SpecialTokens(
        unk_token="<unk>", cls_token="</s>", sep_token="</s>", pad_token="<pad>",
        mask_token="<special1>", bos_token="<s>", additional_special_tokens=("<special0>",),
    )  # fmt: skip
    return BPETokenizer(PIECES, [], special_tokens=special, layout=Layout())


def _backbone(**shape):
    keras.utils.set_random_seed(0)
    return bf.build("xlm", "tiny", **{**SHAPE, **shape})


@pytest.mark.extended
def test_by_hand(tokenizer):
    pairs = TranslationPairs(_backbone(), tokenizer)
    found = pairs(FIRST, SECOND, [[2, 0], [0, 1], [1, 2]])
    expected = {
        "token_ids": [
            [1, 6, 7, 8, 1, 1, 12, 13, 1],
            [1, 9, 1, 1, 6, 7, 8, 9, 1],
            [1, 10, 11, 1, 1, 1, 2, 2, 2],
        ],
        "padding_mask": [[1] * 9, [1] * 9, [1] * 6 + [0] * 3],
        "position_ids": [
            [0, 1, 2, 3, 4, 0, 1, 2, 3],
            [0, 1, 2, 0, 1, 2, 3, 4, 5],
            [0, 1, 2, 3, 0, 1, 0, 0, 0],
        ],
        "language_ids": [
            [2, 2, 2, 2, 2, 0, 0, 0, 0],
            [0, 0, 0, 1, 1, 1, 1, 1, 1],
            [1, 1, 1, 1, 2, 2, 0, 0, 0],
        ],
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert found[name].dtype == tf.int32
    # One pair of languages for all, in a pipeline too, and padded to a fixed length.
    data = tf.data.Dataset.from_tensors((FIRST, SECOND)).map(lambda a, b: pairs(a, b, [0, 1]))
    languages = data.get_single_element()["language_ids"]
    np.testing.assert_array_equal(languages[0], [0] * 5 + [1] * 4)
    wide = TranslationPairs(_backbone(), tokenizer, padding="max_length")(FIRST, SECOND, [0, 1])
    for name, value in found.items():
        assert wide[name].shape == (3, 16)
        if name != "language_ids":
            np.testing.assert_array_equal(wide[name][:, :9], value)


def test_truncation(tokenizer):
    found = TranslationPairs(_backbone(), tokenizer, max_length=8)(FIRST, SECOND, [0, 1])
    np.testing.assert_array_equal(found["token_ids"][0], [1, 6, 7, 1, 1, 12, 13, 1])
    np.testing.assert_array_equal(found["position_ids"][0], [0, 1, 2, 3, 0, 1, 2, 3])


def test_masks_and_loss(tokenizer):
    """Ordinary tokens are masked, in both languages; the loss is of them alone."""
    backbone = _backbone()
    masking = Masking(tokenizer, 0.5, masked=1.0, random=0.0)
    inputs = TranslationPairs(backbone, tokenizer)(FIRST, SECOND, [0, 1])
    ids, mask = inputs["token_ids"].numpy(), inputs["padding_mask"].numpy()
    seeds = np.stack([np.repeat(range(20), 3), np.tile(range(3), 20)], axis=1)
    often = masking(np.tile(ids, (20, 1)), np.tile(mask, (20, 1)), seeds).token_ids.numpy()
    changed = often.reshape(20, 3, 9) != ids
    assert (often.reshape(20, 3, 9)[changed] == MASK).all()
    assert not changed[:, :, 0].any()
    np.testing.assert_array_equal(changed.any(0), ids > 5)

    head = heads.build(backbone, "masked_lm")
    for weight in [*backbone.weights, *head.weights]:
        weight.assign_add(np.random.default_rng(0).normal(0, 0.3, weight.shape))
    masked = masking(ids, mask, seeds[:3])
    inputs["token_ids"] = masked.token_ids
    logits = head(backbone(inputs)).numpy()
    rows, predictions = np.nonzero(masked.weights)
    positions, tokens = (x.numpy()[rows, predictions] for x in (masked.positions, masked.targets))
    expected = -tf.nn.log_softmax(logits[rows, positions]).numpy()[range(len(rows)), tokens].mean()
    objective = MaskedTokens(head)
    targets = {"positions": masked.positions, "token_ids": masked.targets}
    for unpadded in (False, True):
        with unpadding(unpadded):
            batch = Batch(inputs, targets, masked.weights)
            found = objective.loss(backbone(inputs), objective.heads, batch)
            total, count = found["masked_lm"]
        assert float(total / count) == pytest.approx(expected, rel=1e-5)

    objective = TranslatedTokens(head, {"masked_lm": 1.0, "tlm": 0.5})
    for translated, name, other in ((1, "tlm", "masked_lm"), (0, "masked_lm", "tlm")):
        batch = Batch(inputs, {**targets, "translated": tf.fill([3], translated)}, masked.weights)
        found = objective.loss(backbone(inputs), objective.heads, batch)
        assert float(found[name][0] / found[name][1]) == pytest.approx(expected, rel=1e-5)
        assert [float(value) for value in found[other]] == [0, 0]


@pytest.mark.parametrize(
    ("family", "shape", "message"),
    [
        ("bert", {}, "bert without position_ids and language_ids"),
        ("xlm", dict(num_languages=1), "xlm without language_ids"),
    ],
)
def test_families_without_languages_are_refused(tokenizer, family, shape, message):
    with pytest.raises(ValueError, match=f"inputs position_ids and language_ids, got {message}"):
        TranslationPairs(bf.build(family, "tiny", vocab_size=20, **shape), tokenizer)


def test_mistakes(tokenizer):
    backbone = _backbone()
    with pytest.raises(ValueError, match="max_length must be at most 16, got 17"):
        TranslationPairs(backbone, tokenizer, 17)
    with pytest.raises(ValueError, match="max_length 5 is too small"):
        TranslationPairs(backbone, tokenizer, 5)
    plain = BPETokenizer(PIECES, [], special_tokens=tokenizer.special_tokens)
    with pytest.raises(ValueError, match="A text must start with a special token, got a layout of"):
        TranslationPairs(backbone, plain)
    pairs = TranslationPairs(backbone, tokenizer)
    for languages, message in (
        ([0, 3], "must be from 0 to 2, got 3"),
        ([[0, 1], [-1, 1], [0, 0]], "must be from 0 to 2, got -1"),
        ([0.0, 1.0], "must be integers, got float32"),
        ([0, 1, 2], r"must have the shape \(2,\) or \(batch, 2\), got \(3,\)"),
        (1, r"must have the shape \(2,\) or \(batch, 2\), got \(\)"),
    ):
        with pytest.raises(ValueError, match=f"languages {message}"):
            pairs(FIRST, SECOND, languages)
