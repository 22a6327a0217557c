"""Token streams for language models, split into consecutive segments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf import parsing
from bertfam_tf.data.batching import training_options
from bertfam_tf.text.pretokenized import lacks_prefix_space

_LINES = 1024
# Its token in byte-level BPE.
_LINE_FEED = "\u010a"


def read_lines(files: Iterable[str | Path]) -> Iterator[bytes]:
    """Yields the lines of text files, one file after the other, without line ends.

    Files that are compressed by gzip are decompressed as they are read.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is a pipe, a device or a directory, or is not UTF-8.
    """
    for file in files:
        for number, line in enumerate(parsing.byte_lines(Path(file)), 1):
            problem = parsing.not_utf8(f"{file}: line {number}", line)
            if problem:
                raise ValueError(problem)
            yield line.rstrip(b"\r\n")


def token_stream(
    texts: Iterable[str | bytes],
    tokenizer: Any,
    end: str | None,
    file: str | Path | None = None,
) -> np.ndarray:
    """Returns the concatenated tokens of texts.

    Args:
        texts: texts, such as the lines of a corpus.
        tokenizer: the tokenizer.
        end: a token to append to each text, such as ``"<eos>"``; None for none or, in byte-level
            BPE without ``add_prefix_space``, for a line feed.
        file: a file for the ids, which are then read from it as they are needed, for texts that do
            not fit in memory; None to keep them in memory.

    Returns:
        uint16 (tokens,), or uint32 for a vocabulary of more than 65,536 tokens.

    Raises:
        ValueError: if ``end`` is not in the vocabulary, or the texts have no tokens.
        OSError: if the file cannot be written.
    """
    if end is None and lacks_prefix_space(tokenizer):
        end = _LINE_FEED
    if end is not None and end not in tokenizer.vocabulary:
        raise ValueError(f"The tokenizer has no token {end!r} to append to each text.")
    after = [] if end is None else [tokenizer.token_to_id(end)]
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def encode(batch):
        pieces = tokenizer.tokenize(batch)
        ends = tf.fill([pieces.nrows(), len(after)], tf.constant([*after, 0])[0])
        return tf.concat([pieces, tf.cast(ends, pieces.dtype)], axis=1).values

    texts, encoded = iter(texts), encode.get_concrete_function()

    def parts() -> Iterator[np.ndarray]:
        while batch := list(itertools.islice(texts, _LINES)):
            yield encoded(tf.constant(batch, tf.string)).numpy().astype(dtype)

    if file is None:
        arrays = list(parts())
        ids = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    else:
        with Path(file).open("wb") as stream:
            for part in parts():
                part.tofile(stream)
        empty = not Path(file).stat().st_size
        ids = np.zeros(0, dtype) if empty else np.memmap(file, dtype, mode="r")
    if not len(ids):
        raise ValueError("The texts have no tokens.")
    return ids


def segments(ids: np.ndarray, batch_size: int = 1, length: int = 128) -> tf.data.Dataset:
    """Splits a stream into segments, each of which continues a segment of the previous batch.

    The stream is split into ``batch_size`` parts of equal length. Example i of each batch is the
    next segment of part i. Every token except the first is a target once. Ids are copied batch by
    batch, so that a ``numpy.memmap`` stays on disk.

    Args:
        ids: integers (tokens,), at least two.
        batch_size: the number of parts, which are read in parallel.
        length: the number of tokens of a segment.

    Returns:
        Batches ``(inputs, targets, weights)``: a dict of ``token_ids`` int32 (batch, length) and
        ``begins`` int32 (batch,), 1 where a part begins; int32 and float32 (batch, length).
        Weights are 0 after the end of the last part. The last batch may be shorter.

    Raises:
        ValueError: if there are fewer than two tokens, or a size is below 1.
    """
    if len(ids) < 2 or min(batch_size, length) < 1:
        raise ValueError(
            "There must be at least 2 tokens, and batch_size and length must be at least 1, got "
            f"{len(ids)} tokens, {batch_size=} and {length=}."
        )
    total = len(ids) - 1
    width = -(-total // batch_size)

    def rows(start: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids (batch, 1 + length), 0 after the end, and each row's number of targets."""
        size = min(length, width - int(start))
        rows_of_ids = np.zeros((batch_size, size + 1), "int32")
        counts = np.zeros(batch_size, "int32")
        for i in range(batch_size):
            first = i * width + int(start)
            counts[i] = np.clip(total - first, 0, size)
            if counts[i]:
                rows_of_ids[i, : counts[i] + 1] = ids[first : first + counts[i] + 1]
        return rows_of_ids, counts

    @tf.autograph.experimental.do_not_convert
    def segment(start: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        rows_of_ids, counts = tf.numpy_function(rows, [start], (tf.int32, tf.int32), stateful=False)
        rows_of_ids.set_shape([batch_size, None])
        counts.set_shape([batch_size])
        tokens, targets = rows_of_ids[:, :-1], rows_of_ids[:, 1:]
        real = tf.sequence_mask(counts, tf.shape(tokens)[1])
        begins = tf.fill([batch_size], tf.cast(tf.equal(start, 0), tf.int32))
        inputs = {"token_ids": tf.where(real, tokens, 0), "begins": begins}
        return inputs, targets, tf.cast(real, tf.float32)

    segments = tf.data.Dataset.range(0, width, length)
    return training_options(segments.map(segment).prefetch(2))
