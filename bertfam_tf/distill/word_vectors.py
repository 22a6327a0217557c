"""Word vectors from files into the token embedding of a backbone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertfam_tf.models import Backbone
from bertfam_tf.names import truncated
from bertfam_tf.text import Tokenizer

# Published files have at most 12 characters for a number; the longest "words" are addresses.
_BYTES_OF_A_NUMBER = 32
_BYTES_OF_A_WORD = 4096


def load_word_vectors(
    backbone: Backbone, tokenizer: Tokenizer, file: str | os.PathLike[str]
) -> float:
    """Sets the rows of the token embedding whose piece is a word of a file of word vectors.

    Other rows, such as those of special tokens and of pieces within words, stay as they are. Words
    are compared as they are written, with their case; of lines with the same word the first counts.
    The file is read line by line.

    Args:
        backbone: a model with one table of token embeddings, such as the family ``bilstm``'s.
        tokenizer: the backbone's tokenizer.
        file: text with a word and its numbers in each line, separated by single spaces, as GloVe
            is published (Pennington et al. 2014), or with a first line of two numbers, as word2vec
            and fastText write it.

    Returns:
        The share of the rows that were set, from 0 to 1.

    Raises:
        ValueError: there is no such file, a line is no word with as many finite numbers as the
            embedding is wide, or the tokenizer has more pieces than the embedding has rows; no row
            is set then.
        OSError: the file cannot be read.
    """
    embedding = backbone.parts["token_embedding"].embeddings
    rows = {piece.encode("utf-8"): row for row, piece in enumerate(tokenizer.vocabulary)}
    count, width = embedding.shape
    if len(tokenizer.vocabulary) > count:
        raise ValueError(
            f"The tokenizer has {len(tokenizer.vocabulary)} pieces, the embedding {count} rows; "
            "expected the tokenizer of this backbone."
        )
    table = np.array(embedding)
    for where, word, numbers in _lines(Path(file), width):
        row = rows.pop(word, None)
        if row is None:
            continue
        try:
            vector = np.array(numbers, "S").astype("float32")
        except ValueError:
            vector = np.array([np.nan])
        if not np.isfinite(vector).all():
            raise ValueError(f"{where}: expected {width} finite numbers after the word.")
        table[row] = vector
    embedding.assign(table)
    return (len(tokenizer.vocabulary) - len(rows)) / count


def _lines(path: Path, width: int) -> Iterator[tuple[str, bytes, list[bytes]]]:
    """Where each line is, its word and its numbers."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty, expected a word and {width} numbers in each line.")
    limit = _BYTES_OF_A_WORD + _BYTES_OF_A_NUMBER * width
    with path.open("rb") as stream:
        # With a limit, because a file without line ends would be read as a whole.
        for number, line in enumerate(iter(lambda: stream.readline(limit), b""), 1):
            where = f"{path}: line {number}"
            # Some words of the largest files have spaces in them.
            fields = line.rstrip(b" \r\n").rsplit(b" ", -1 if number == 1 else width)
            if number == 1 and len(fields) == 2 and fields[1] == b"%d" % width:
                continue
            if len(fields) != width + 1 or len(line) == limit:
                raise ValueError(
                    f"{where}: expected a word and {width} numbers, the width of the embedding, "
                    f"got {truncated(line.decode('utf-8', 'replace').strip(), 40)!r} with "
                    f"{len(fields) - 1}."
                )
            yield where, fields[0], fields[1:]
