"""Beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bertfam_tf.generation.loop import (
    block_length,
    in_blocks,
    is_one_of,
    shape_of_state,
    without_early_stops,
)
from bertfam_tf.generation.models import Step, reserve
from bertfam_tf.generation.options import Options
from bertfam_tf.generation.repetition import without_repetition

# Lower than any score, but finite, so that sums and products with it are not NaN.
_NEVER = -1e9


class _Beams(NamedTuple):
    """State of the search.

    Fields:
        running, finished: unfinished hypotheses and the best finished ones, (batch, beams, new
            tokens).
        running_scores: log-probabilities, (batch, beams).
        finished_scores: log-probabilities with the length penalty, (batch, beams).
        is_finished: whether an element of ``finished`` is a hypothesis, (batch, beams).
        improvable: whether a running hypothesis can still become one of the best, (batch, 1).
        padding_mask, state: the same as for ``Step``, for batch · beams hypotheses.
    """

    running: tf.Tensor
    running_scores: tf.Tensor
    finished: tf.Tensor
    finished_scores: tf.Tensor
    is_finished: tf.Tensor
    improvable: tf.Tensor
    padding_mask: tf.Tensor
    state: Any


class _LogProbabilities:
    """A ``Step`` whose logits are log-probabilities."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        logits, state = self.step(token_ids, padding_mask, state)
        return tf.nn.log_softmax(logits), state

    def reserve(self, state: Any, tokens: Any) -> Any:
        return reserve(self.step, state, tokens)


def beam_search(
    step: Step,
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    options: Options,
    stop_ids: Sequence[int],
    pad_id: int,
) -> tf.Tensor:
    """Returns the best hypothesis for each prompt, int32 (batch, new tokens).

    A hypothesis is finished after a stop token, or at the maximum length. The search for a prompt
    ends when its best running hypothesis, with the penalty for its current length, is not better
    than the worst of ``num_beams`` finished ones. Among equal scores, the first one is chosen.
    """
    beams = options.num_beams
    # As in transformers, the penalty changes log-probabilities, which are not normalized again.
    step = without_repetition(_LogProbabilities(step), options)
    log_probs, state = step(token_ids, padding_mask, None)
    batch = tf.shape(token_ids)[0]

    def repeated(tensor: tf.Tensor) -> tf.Tensor:
        return tf.repeat(tensor, beams, axis=0)

    empty = tf.zeros([batch, beams, 0], tf.int32)
    lowest = tf.fill([batch, beams], _NEVER)
    start = _Beams(
        running=empty,
        # All beams are equal at first, so only one of them is used.
        running_scores=tf.concat([tf.zeros([batch, 1]), lowest[:, 1:]], axis=1),
        finished=empty,
        finished_scores=lowest,
        is_finished=tf.zeros([batch, beams], tf.bool),
        improvable=tf.ones([batch, 1], tf.bool),
        padding_mask=repeated(padding_mask),
        state=tf.nest.map_structure(repeated, state),
    )
    first = _extend(start, repeated(log_probs), options, stop_ids, pad_id)

    def can_improve(*loop_variables: Any) -> tf.Tensor:
        now = _Beams(*loop_variables)
        return (tf.shape(now.running)[2] < options.max_new_tokens) & tf.reduce_any(now.improvable)

    def body(*loop_variables: Any) -> _Beams:
        now = _Beams(*loop_variables)
        last = tf.reshape(now.running[:, :, -1], [-1, 1])
        log_probs, state = step(last, now.padding_mask, now.state)
        return _extend(now._replace(state=state), log_probs, options, stop_ids, pad_id)

    shapes = tf.nest.map_structure(lambda tensor: tensor.shape, first)
    hypotheses = tf.TensorShape([None, beams, None])
    shapes = shapes._replace(
        running=hypotheses,
        finished=hypotheses,
        padding_mask=tf.TensorShape([None, None]),
        state=tf.nest.map_structure(shape_of_state, first.state),
    )

    def with_room(*loop_variables: Any) -> _Beams:
        now = _Beams(*loop_variables)
        return now._replace(state=reserve(step, now.state, block_length(options)))

    loop_variables = in_blocks(
        can_improve,
        body,
        with_room,
        tuple(first),
        lambda *loop_variables: tf.shape(loop_variables[0])[2],
        block_length(options),
        tuple(shapes),
    )
    best = _Beams(*loop_variables).finished[:, 0]
    # Drops columns that are padding in the whole batch.
    ended = tf.cumsum(tf.cast(is_one_of(best, stop_ids), tf.int32), axis=1, exclusive=True) > 0
    return best[:, : tf.reduce_max(tf.reduce_sum(tf.cast(~ended, tf.int32), axis=1))]


def _extend(
    now: _Beams, log_probs: tf.Tensor, options: Options, stop_ids: Sequence[int], pad_id: int
) -> _Beams:
    """Extends every running hypothesis by one token, and keeps the best.

    ``log_probs`` are log-probabilities of the token, (batch · beams, vocabulary).
    """
    beams, size = options.num_beams, log_probs.shape[-1]
    batch, _, length = tf.unstack(tf.shape(now.running))
    length += 1
    scores = without_early_stops(log_probs, options, stop_ids, length - 1)
    scores = tf.reshape(scores, [batch, beams, size])
    scores = tf.reshape(scores + now.running_scores[:, :, tf.newaxis], [batch, beams * size])
    # Enough so that ``beams`` of them remain even if all others end.
    kept = max(2, 1 + len(stop_ids)) * beams
    scores, indices = tf.math.top_k(scores, kept)  # (batch, kept)
    parents, tokens = indices // size, indices % size
    candidates = tf.concat(
        [tf.gather(now.running, parents, batch_dims=1), tokens[:, :, tf.newaxis]], axis=2
    )
    ends = is_one_of(tokens, stop_ids) | (length >= options.max_new_tokens)

    running_scores, chosen = tf.math.top_k(scores + tf.cast(ends, tf.float32) * _NEVER, beams)
    parents = tf.gather(parents, chosen, batch_dims=1)
    source = tf.reshape(parents + tf.range(batch)[:, tf.newaxis] * beams, [-1])

    # A hypothesis that ends outside the best ``beams`` is discarded.
    counts = ends & (tf.range(kept) < beams)
    penalty = tf.cast(length, tf.float32) ** options.length_penalty
    values = scores / penalty + tf.cast(~counts, tf.float32) * _NEVER
    values += tf.cast(~now.improvable, tf.float32) * _NEVER
    pad = tf.fill([batch, beams, 1], pad_id)
    ended = tf.concat([tf.concat([now.finished, pad], axis=2), candidates], axis=1)
    finished_scores, best = tf.math.top_k(tf.concat([now.finished_scores, values], axis=1), beams)
    is_finished = tf.gather(tf.concat([now.is_finished, counts], axis=1), best, batch_dims=1)

    worst = tf.reduce_min(finished_scores, axis=1, keepdims=True)
    worst = tf.where(is_finished, worst, _NEVER)
    hope = running_scores[:, :1] / penalty
    return _Beams(
        running=tf.gather(candidates, chosen, batch_dims=1),
        running_scores=running_scores,
        finished=tf.gather(ended, best, batch_dims=1),
        finished_scores=finished_scores,
        is_finished=is_finished,
        improvable=now.improvable & tf.reduce_any(hope > worst, axis=1, keepdims=True),
        padding_mask=tf.concat([now.padding_mask, tf.ones_like(now.padding_mask[:, :1])], axis=1),
        state=tf.nest.map_structure(lambda tensor: tf.gather(tensor, source), now.state),
    )
