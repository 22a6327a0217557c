"""The loss of the words after and before each: by hand, and from sentences as characters."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.corpora import SentenceWords
from bertfam_tf.models import unpadding
from bertfam_tf.objectives import BidirectionalTokens, bidirectional_head
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.text import CharacterTokenizer
from bertfam_tf.training.learner import Learner
from tests.seeding import seed
from tests.selection import only_in

VOCABULARY = ["<S>", "</S>", "<UNK>", "the", "film", "is", "good", ","]
SENTENCES = ["the film is good", "", "is the film good , no ?", "good film"]


def _made():
    seed(0)
    backbone = bf.build("elmo", "tiny", hidden_size=8, cell_size=6, dropout=0.0)
    head = bidirectional_head(backbone, len(VOCABULARY))
    rng = np.random.default_rng(0)
    for weight in (*backbone.weights, *head.weights):
        weight.assign_add(rng.normal(0, 0.3, weight.shape))
    return backbone, head


def _pack(max_length=20):
    return SentenceWords(CharacterTokenizer(), VOCABULARY, max_length)


def test_words_are_at_the_positions_of_their_characters():
    inputs, words = _pack()(tf.constant(SENTENCES))
    assert words.numpy().tolist() == [
        [0, 3, 4, 5, 6, 1, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0, 0, 0],
        [0, 5, 3, 4, 6, 7, 2, 2, 1],
        [0, 6, 4, 1, 0, 0, 0, 0, 0],
    ]
    assert inputs["token_ids"].shape == (4, 9, 50)
    np.testing.assert_array_equal(tf.reduce_sum(inputs["padding_mask"], axis=1), [6, 2, 9, 4])
    inputs, words = _pack(6)(tf.constant(SENTENCES))
    assert words.numpy().tolist()[2] == [0, 5, 3, 4, 6, 1]


@only_in("extended", "False")
@pytest.mark.parametrize("unpadded", [False, True])
def test_the_loss_by_hand(unpadded):
    backbone, head = _made()
    inputs, words = _pack()(tf.constant(SENTENCES))
    outputs = backbone(inputs)
    states = outputs["hidden_states"][-1].numpy()
    losses, hits = [], []
    for row, (ids, length) in enumerate(zip(words.numpy(), [6, 2, 9, 4], strict=True)):
        for at in range(length):
            for half, other in ((states[row, at, :4], at + 1), (states[row, at, 4:], at - 1)):
                if 0 <= other < length:
                    chances = tf.nn.log_softmax(head(half[None]))[0].numpy()
                    losses.append(-chances[ids[other]])
                    hits.append(chances.argmax() == ids[other])
    objective = BidirectionalTokens(head)
    with unpadding(unpadded):
        found = objective.loss(outputs, objective.heads, Batch(inputs, words))
    total, count = found["bidirectional_lm"]
    assert float(count) == len(losses) == 2 * (5 + 1 + 8 + 3)
    assert float(total) == pytest.approx(sum(losses), rel=1e-5)
    assert float(found["bidirectional_lm_accuracy"][0]) == sum(hits)


@pytest.mark.extended
def test_neither_direction_sees_the_word_that_it_predicts():
    backbone, _ = _made()
    inputs, _ = _pack()(tf.constant(SENTENCES[:1]))
    before = backbone(inputs)["hidden_states"][-1].numpy()
    for at in range(6):
        ids = inputs["token_ids"].numpy()
        ids[:, at] = ids[:, at] % 200 + 1
        after = backbone({**inputs, "token_ids": ids})["hidden_states"][-1].numpy()
        changed = np.abs(after - before)[0] > 1e-6
        assert not changed[:at, :4].any()
        assert not changed[at + 1 :, 4:].any()
        assert changed[at].any()


@pytest.mark.full
def test_it_trains():
    backbone, head = _made()
    outputs = {"hidden_states": backbone.output["hidden_states"]}
    model = Learner(backbone.input, outputs, [BidirectionalTokens(head)])
    model.compile("adam")
    data = tf.data.Dataset.from_tensor_slices(SENTENCES * 8).batch(4).map(_pack())
    history = model.fit(data, epochs=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["bidirectional_lm_perplexity"][-1] == pytest.approx(np.exp(history["loss"][-1]))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float16"])
def test_logits_in_half_precision_are_float32(dtype):
    backbone = bf.build("elmo", "tiny", hidden_size=8, cell_size=6, dtype=dtype)
    assert (
        bidirectional_head(backbone, 3)(tf.ones((1, 4), backbone.compute_dtype)).dtype == "float32"
    )


def test_mistakes():
    backbone, head = _made()
    with pytest.raises(ValueError, match="vocab_size must be at least 1, got 0"):
        bidirectional_head(backbone, 0)
    inputs, _ = _pack()(tf.constant(SENTENCES))
    objective = BidirectionalTokens(head)
    with pytest.raises(ValueError, match="targets must be the ids of words, got none"):
        objective.loss(backbone(inputs), objective.heads, Batch(inputs))
    with pytest.raises(ValueError, match="vocabulary must start with '<S>', '</S>' and a word"):
        SentenceWords(CharacterTokenizer(), VOCABULARY[1:], 20)
    with pytest.raises(ValueError, match="vocabulary must not repeat a word"):
        SentenceWords(CharacterTokenizer(), [*VOCABULARY, "the"], 20)
