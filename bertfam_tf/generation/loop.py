"""Greedy search and sampling: one continuation for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bertfam_tf.generation.models import Step
from bertfam_tf.generation.options import Options
from bertfam_tf.generation.sampling import sample


class Progress(NamedTuple):
    """State of generation.

    Fields:
        new_tokens: int32 (batch, new tokens).
        padding_mask: int32 (batch, prompt + new tokens).
        finished: bool (batch,), whether a stop token was chosen.
        state: the model's state, which does not include the last token.
    """

    new_tokens: tf.Tensor
    padding_mask: tf.Tensor
    finished: tf.Tensor
    state: Any


def is_one_of(tokens: tf.Tensor, stop_ids: Sequence[int]) -> tf.Tensor:
    """Returns whether each token is one of ``stop_ids``."""
    stops = tf.constant(list(stop_ids), tf.int32)
    return tf.reduce_any(tokens[..., tf.newaxis] == stops, axis=-1)


def begin(
    step: Step,
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    options: Options,
    stop_ids: Sequence[int],
    seed: Any,
) -> Progress:
    """Processes the prompts and chooses the first token."""
    logits, state = step(token_ids, padding_mask, None)
    token = sample(logits, options, seed, 0)
    return Progress(
        token[:, tf.newaxis], _extended(padding_mask), is_one_of(token, stop_ids), state
    )


def advance(
    step: Step,
    progress: Progress,
    options: Options,
    stop_ids: Sequence[int],
    pad_id: int,
    seed: Any,
) -> Progress:
    """Chooses one more token; finished continuations get ``pad_id``."""
    new_tokens, padding_mask, finished, state = progress
    logits, state = step(new_tokens[:, -1:], padding_mask, state)
    token = sample(logits, options, seed, tf.shape(new_tokens)[1])
    token = tf.where(finished, pad_id, token)
    return Progress(
        tf.concat([new_tokens, token[:, tf.newaxis]], axis=1),
        _extended(padding_mask),
        finished | is_one_of(token, stop_ids),
        state,
    )


def _extended(padding_mask: tf.Tensor) -> tf.Tensor:
    return tf.concat([padding_mask, tf.ones_like(padding_mask[:, :1])], axis=1)


def run(
    step: Step,
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    options: Options,
    stop_ids: Sequence[int],
    pad_id: int,
    seed: Any,
) -> tf.Tensor:
    """Generates all new tokens, int32 (batch, new tokens), with one loop in the graph."""
    first = begin(step, token_ids, padding_mask, options, stop_ids, seed)

    def unfinished(*progress: Any) -> tf.Tensor:
        chosen = tf.shape(progress[0])[1]
        return (chosen < options.max_new_tokens) & ~tf.reduce_all(progress[2])

    def body(*progress: Any) -> Progress:
        return advance(step, Progress(*progress), options, stop_ids, pad_id, seed)

    return tf.while_loop(
        unfinished,
        body,
        tuple(first),
        shape_invariants=tuple(tf.nest.map_structure(lambda s: s.shape, progress_spec(first))),
    )[0]


def progress_spec(progress: Progress) -> Progress:
    """Returns the specs of ``progress``, with shapes for any number of tokens, for loops."""

    def spec(tensor: Any) -> tf.TensorSpec:
        shape = tensor.shape
        return tf.TensorSpec([None, None] if shape.rank == 2 else shape, tensor.dtype)

    return tf.nest.map_structure(spec, progress)
