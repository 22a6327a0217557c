"""Streams of token ids for language models, in consecutive segments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.data.batching import training_options

_LINES = 1024


def read_lines(files: Iterable[str | Path]) -> Iterator[bytes]:
    """Yields the lines of text files, one file after the other, without line ends.

    Raises:
        FileNotFoundError: there is no such file.
    """
    for file in files:
        with Path(file).open("rb") as stream:
            for line in stream:
                yield line.rstrip(b"\r\n")


def token_stream(texts: Iterable[str | bytes], tokenizer: Any, end: str | None) -> np.ndarray:
    """Returns the concatenated tokens of texts.

    Args:
        texts: texts, such as the lines of a corpus.
        tokenizer: the tokenizer.
        end: a token to append to each text, such as ``"<eos>"``, or None.

    Returns:
        int32 (tokens,).

    Raises:
        ValueError: for an ``end`` that is not in the vocabulary, or texts without tokens.
    """
    if end is not None and end not in tokenizer.vocabulary:
        raise ValueError(f"The tokenizer has no token {end!r} to append to each text.")
    after = [] if end is None else [tokenizer.token_to_id(end)]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def encode(batch):
        pieces = tokenizer.tokenize(batch)
        ends = tf.fill([pieces.nrows(), len(after)], tf.constant([*after, 0])[0])
        return tf.concat([pieces, tf.cast(ends, pieces.dtype)], axis=1).values

    texts, encoded = iter(texts), encode.get_concrete_function()
    parts = []
    while batch := list(itertools.islice(texts, _LINES)):
        parts.append(encoded(tf.constant(batch, tf.string)).numpy())
    ids = np.concatenate(parts) if parts else np.zeros(0, "int32")
    if not len(ids):
        raise ValueError("The texts have no tokens.")
    return ids


def segments(ids: np.ndarray, batch_size: int = 1, length: int = 128) -> tf.data.Dataset:
    """Splits a stream into segments, each of which continues a segment of the previous batch.

    The stream is split into ``batch_size`` parts of equal length. Example i of each batch is the
    next segment of part i. Every token except the first is a target once.

    Args:
        ids: int (tokens,), at least two.
        batch_size: number of parts, which are read in parallel.
        length: number of tokens of a segment.

    Returns:
        Batches ``(inputs, targets, weights)``: a dict of ``token_ids`` int32 (batch, length) and
        ``begins`` int32 (batch,), 1 where a part begins; int32 and float32 (batch, length).
        Weights are 0 after the end of the last part. The last batch may be shorter.

    Raises:
        ValueError: for fewer than two tokens, or sizes below 1.
    """
    if len(ids) < 2 or min(batch_size, length) < 1:
        raise ValueError(
            "There must be at least 2 tokens, and batch_size and length must be at least 1, got "
            f"{len(ids)} tokens, {batch_size=} and {length=}."
        )
    total = len(ids) - 1
    width = -(-total // batch_size)
    flat = np.zeros((3, batch_size * width), "int32")
    flat[:, :total] = ids[:-1], ids[1:], np.ones(total)

    def segment(start: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        tokens, targets, weights = tf.unstack(stream[:, :, start : start + length])
        begins = tf.fill([batch_size], tf.cast(tf.equal(start, 0), tf.int32))
        return {"token_ids": tokens, "begins": begins}, targets, tf.cast(weights, tf.float32)

    stream = tf.constant(flat.reshape(3, batch_size, width))
    segments = tf.data.Dataset.range(0, width, length)
    return training_options(segments.map(segment).prefetch(2))
