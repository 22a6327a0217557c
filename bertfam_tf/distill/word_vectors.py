"""Loads word vectors from files into the token embedding of a backbone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertfam_tf.models import Backbone
from bertfam_tf.names import truncated
from bertfam_tf.text import Tokenizer

# The longest line; published files have at most a few thousand bytes in each.
_LONGEST = 1 << 19


def load_word_vectors(
    backbone: Backbone, tokenizer: Tokenizer, file: str | os.PathLike[str]
) -> float:
    """Sets the embeddings of tokens that are words in a file of word vectors.

    Other rows, such as special tokens and tokens within words, keep their values. Words are
    compared with case; the first line of a word counts. The file is read line by line.

    Args:
        backbone: a model with one table of token embeddings, such as the family ``bilstm``'s.
        tokenizer: the backbone's tokenizer.
        file: a text file with a word and its numbers in each line, separated by single spaces, as
            GloVe (Pennington et al. 2014). A first line of two numbers, as in word2vec's and
            fastText's files, is skipped.

    Returns:
        The fraction of the rows that were set, from 0 to 1.

    Raises:
        ValueError: if there is no such file, a line is not a word with as many finite numbers as
            the embedding is wide, or the tokenizer has more tokens than the embedding has rows. No
            row is changed then.
        OSError: if the file cannot be read.
    """
    embedding = backbone.parts["token_embedding"].embeddings
    rows = {piece.encode("utf-8"): row for row, piece in enumerate(tokenizer.vocabulary)}
    count, width = embedding.shape
    if len(tokenizer.vocabulary) > count:
        raise ValueError(
            f"The tokenizer has {len(tokenizer.vocabulary)} tokens, the embedding {count} rows; "
            "expected the tokenizer of this backbone."
        )
    table = np.array(embedding)
    for where, word, numbers in lines_of(Path(file), width):
        row = rows.pop(word, None)
        if row is not None:
            table[row] = vector_of(where, numbers)
    embedding.assign(table)
    return (len(tokenizer.vocabulary) - len(rows)) / count


def lines_of(path: Path, width: int | None = None) -> Iterator[tuple[str, bytes, list[bytes]]]:
    """Yields the location of each line of a file of word vectors, its word and its numbers.

    Args:
        path: a file in GloVe's format; a first line as word2vec's and fastText's is skipped.
        width: how many numbers follow a word; None for as many as the first line has, or states.

    Raises:
        ValueError: if there is no such file, it is empty, or a line has another form.
    """
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    if not path.stat().st_size:
        expected = f"a word and {width or 'its'} numbers"
        raise ValueError(f"{path} is empty, expected {expected} in each line.")
    with path.open("rb") as stream:
        # The limit keeps a file without line ends from being read at once.
        for number, line in enumerate(iter(lambda: stream.readline(_LONGEST), b""), 1):
            where = f"{path}: line {number}"
            # Some words of the largest files contain spaces.
            fields = line.rstrip(b" \r\n").rsplit(b" ", -1 if number == 1 else width or -1)
            if number == 1:
                header = fields[1] if len(fields) == 2 and len(line) < 40 else b""
                width = width or (int(header) if header.isdigit() else len(fields) - 1)
                if header == b"%d" % width:
                    continue
            if len(fields) - 1 != width or not width or len(line) == _LONGEST:
                raise ValueError(
                    f"{where}: expected a word and {width or 'its'} numbers, as in GloVe's files, "
                    f"got {truncated(line.decode('utf-8', 'replace').strip(), 40)!r} with "
                    f"{len(fields) - 1}."
                )
            yield where, fields[0], fields[1:]


def vector_of(where: str, numbers: list[bytes]) -> np.ndarray:
    """Returns the numbers of a line as float32; raises ValueError unless all are finite."""
    try:
        with np.errstate(over="ignore"):
            vector = np.array(numbers, "float64").astype("float32")
    except ValueError:
        vector = np.array([np.nan])
    if not np.isfinite(vector).all():
        raise ValueError(f"{where}: expected {len(numbers)} finite numbers after the word.")
    return vector
