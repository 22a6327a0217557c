"""Greedy search and sampling: one continuation for each prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bertfam_tf.generation.models import Step, reserve
from bertfam_tf.generation.options import Options
from bertfam_tf.generation.repetition import without_repetition
from bertfam_tf.generation.sampling import sample

# The tokens for which a state gets room at once. Attention reads free positions too, so few; each
# time, the state is copied, so not too few.
BLOCK = 128


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


def without_early_stops(
    scores: tf.Tensor, options: Options, stop_ids: Sequence[int], new_tokens: Any
) -> tf.Tensor:
    """Sets the scores of stop tokens to -inf if there are not ``min_new_tokens`` yet.

    Args:
        scores: float (rows, vocabulary).
        options: generation options.
        stop_ids: the tokens that end a continuation.
        new_tokens: the number of tokens generated before, an integer or a scalar.
    """
    if not options.min_new_tokens or not stop_ids:
        return scores
    stops = is_one_of(tf.range(scores.shape[-1]), stop_ids)
    return tf.where(stops & (new_tokens < options.min_new_tokens), -float("inf"), scores)


def begin(
    step: Step,
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    options: Options,
    stop_ids: Sequence[int],
    seed: Any,
) -> Progress:
    """Processes the prompts and chooses the first token."""
    logits, state = without_repetition(step, options)(token_ids, padding_mask, None)
    token = sample(without_early_stops(logits, options, stop_ids, 0), options, seed, 0)
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
    """Chooses one more token; finished continuations get ``pad_id``.

    The state needs room for it (see ``with_room``).
    """
    new_tokens, padding_mask, finished, state = progress
    step = without_repetition(step, options)
    # Not [:, -1:], whose length is unknown while the graph is traced.
    logits, state = step(new_tokens[:, -1, tf.newaxis], padding_mask, state)
    count = tf.shape(new_tokens)[1]
    token = sample(without_early_stops(logits, options, stop_ids, count), options, seed, count)
    token = tf.where(finished, pad_id, token)
    return Progress(
        tf.concat([new_tokens, token[:, tf.newaxis]], axis=1),
        _extended(padding_mask),
        finished | is_one_of(token, stop_ids),
        state,
    )


def with_room(step: Step, progress: Progress, options: Options) -> Progress:
    """Returns ``progress`` with room for the next ``block_length`` tokens."""
    step = without_repetition(step, options)
    return progress._replace(state=reserve(step, progress.state, block_length(options)))


def block_length(options: Options) -> int:
    """Returns the number of tokens for which a state gets room at once."""
    return min(BLOCK, options.max_new_tokens)


def in_blocks(
    unfinished: Callable[..., tf.Tensor],
    body: Callable[..., tuple],
    with_room: Callable[..., tuple],
    first: tuple,
    length: Callable[..., tf.Tensor],
    block: int,
    shapes: tuple,
) -> Any:
    """Runs a loop that makes room for ``block`` tokens before every ``block`` steps.

    Args:
        unfinished: returns whether the loop goes on, for the loop variables.
        body: maps the loop variables before a step to the loop variables after it.
        with_room: returns the loop variables with room for ``block`` more tokens.
        first: the first loop variables.
        length: the number of tokens so far, of the loop variables.
        block: the number of steps for which room is made.
        shapes: the invariant shapes of the loop variables.
    """

    def steps(*variables: Any) -> tuple:
        end = length(*variables) + block
        return tf.while_loop(
            lambda *now: (length(*now) < end) & unfinished(*now),
            body,
            tuple(with_room(*variables)),
            shape_invariants=shapes,
        )

    return tf.while_loop(unfinished, steps, first, shape_invariants=shapes)


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

    return in_blocks(
        unfinished,
        body,
        lambda *progress: with_room(step, Progress(*progress), options),
        tuple(first),
        lambda *progress: tf.shape(progress[0])[1],
        block_length(options),
        tuple(tf.nest.map_structure(lambda s: s.shape, progress_spec(first))),
    )[0]


def progress_spec(progress: Progress) -> Progress:
    """Returns the specs of ``progress``, with shapes for any number of tokens, for loops."""
    return tf.nest.map_structure(lambda x: tf.TensorSpec(shape_of_state(x), x.dtype), progress)


def shape_of_state(tensor: Any) -> tf.TensorShape:
    """Returns the shape of a tensor of a state, for any number of tokens."""
    return tf.TensorShape([None, None]) if tensor.shape.rank == 2 else tensor.shape
