"""Shards of pretraining examples: written once, in units of documents, and read in each pass.

A folder has a TFRecord file for each unit and a data card, which is written last. Records are
``tf.train.Example`` with the token ids ``first`` and, for pairs, ``second``, without special
tokens, and the ``label`` of pairs. They have no masks: training draws them in the graph, so one
folder serves static and dynamic masking of all kinds.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf import parsing
from bertfam_tf.corpora.documents import FileRange, Texts, read_documents
from bertfam_tf.corpora.examples import SEEDS, Format, FormedExamples, pass_seed
from bertfam_tf.corpora.formats import Segments
from bertfam_tf.data.errors import os_errors
from bertfam_tf.data.tfrecords import read_tfrecords
from bertfam_tf.files import LOCK, atomic, remove_all_leftovers, remove_files, resume, write
from bertfam_tf.names import join_names, truncated, truncated_repr
from bertfam_tf.sources import sha256
from bertfam_tf.text import Tokenizer

CARD = "card.json"
VERSION = 1
COUNTS = ("documents", "sentences", "tokens", "examples")
_JOB = "job.json"
_COUNTS = "counts-*.json"
_NAMES = ("examples-*.tfrecord", "rows-*.tfrecord", _COUNTS, CARD, _JOB, LOCK)
# Shards that are read in turns, so that consecutive examples are from several units.
_IN_TURNS = 16


class Unit(NamedTuple):
    """Documents whose examples are one shard.

    Fields:
        number: the number of the shard, from 0.
        texts: the sources of the documents.
    """

    number: int
    texts: tuple[Texts, ...]

    @property
    def shard(self) -> str:
        """The name of its file."""
        return f"examples-{self.number:05}.tfrecord"

    @property
    def counts(self) -> str:
        """The name of a file with its row of the data card, until there is one."""
        return f"counts-{self.number:05}.json"


def units_of(files: Sequence[tuple[str, int]], size: int, documents: str) -> list[Unit]:
    """Divides files, one after the other, into ranges of bytes.

    Units only depend on the files and the size. A document is in the unit in which the blank line
    before it starts. Where each line is a document, the line before it decides; where each file is
    a document, the start of the file. So it does for compressed files, which are not divided.

    Args:
        files: paths, and sizes in bytes.
        size: the size of a unit, in bytes; documents that are longer are not divided.
        documents: the same as for ``documents.read_documents``.

    Raises:
        ValueError: if ``size`` is below 1.
    """
    if size < 1:
        raise ValueError(f"The size of a unit must be at least 1 byte, got {size}.")
    by_unit: dict[int, list[Texts]] = {}
    start = 0
    for file, length in files:
        if documents == "file" or _is_compressed(file):
            by_unit.setdefault(start // size, []).append(FileRange(file))
        else:
            # The bounds of units within the file.
            bounds = range(size - start % size, length, size)
            for begin, end in zip([0, *bounds], [*bounds, None], strict=True):
                unit = (start + begin) // size
                by_unit.setdefault(unit, []).append(FileRange(file, begin, end))
        start += length
    return [Unit(number, tuple(texts)) for number, texts in enumerate(by_unit.values())]


def _is_compressed(file: str) -> bool:
    return Path(file).is_file() and parsing.is_compressed(Path(file))


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Returns the sha256 of the files of ``Tokenizer.save``: the same for copies in any format."""
    digest = hashlib.sha256()
    with TemporaryDirectory() as folder:
        tokenizer.save(folder)
        for path in sorted(Path(folder).iterdir()):
            digest.update(f"{path.name} {sha256(path)}\n".encode())
    return digest.hexdigest()


def description(
    format: Format,
    *,
    files: Sequence[Mapping[str, Any]],
    documents: str,
    sentences: str,
    seed: int,
    unit: int,
) -> dict[str, Any]:
    """Describes everything that determines the shards of a folder, for ``begin`` and the data card.

    Args:
        format: the format of the examples.
        files: a description of each source that identifies its content.
        documents, sentences: the same as for ``documents.read_documents``.
        seed: the seed of the pairs.
        unit: the size of a unit.
    """
    return {
        "version": VERSION,
        "files": list(files),
        "tokenizer_sha256": tokenizer_digest(format.tokenizer),
        "format": format.name,
        "task": format.task if format.pairs else None,
        "length": format.length,
        "documents": documents,
        "sentences": sentences,
        "seed": seed,
        "unit": unit,
    }


def begin(folder: Path, job: Mapping[str, Any]) -> None:
    """Starts or resumes the shards of a folder; removes what killed writers left.

    Raises:
        ValueError: if the folder has shards of another job, or other files.
    """

    def read(file: Path) -> Any:
        stored = parsing.read_json(file)
        # The card has the sums of the shards too.
        return {k: v for k, v in stored.items() if k in job} if isinstance(stored, dict) else None

    if not resume(folder, (folder / CARD, folder / _JOB), job, read, "shards"):
        write(folder / _JOB, as_json(job))
    remove_all_leftovers(folder)


def missing(folder: Path, units: Iterable[Unit]) -> list[Unit]:
    """Returns the units whose shards are not complete."""
    if (folder / CARD).is_file():
        return []
    return [unit for unit in units if not (folder / unit.counts).is_file()]


def write_shard(
    folder: Path, unit: Unit, format: Format, *, documents: str, sentences: str, seed: int
) -> dict[str, Any]:
    """Writes the shard of a unit, atomically, and then its counts, which mark it as complete.

    The bytes depend on the arguments alone. The examples are in the order of the documents.

    Args:
        folder: where ``begin`` was called.
        unit: the documents.
        format: the format of the examples.
        documents, sentences: the same as for ``documents.read_documents``.
        seed: the seed of the pairs, with the unit's number.

    Returns:
        The row of the data card: ``file``, ``bytes``, ``sha256``, the numbers of ``COUNTS``, where
        tokens are without special tokens at both ends, and ``labels``, the numbers of each.

    Raises:
        ValueError: if a file is not UTF-8.
        OSError: if reading or writing fails.
    """
    counts: Counter[str] = Counter()
    labels: Counter[str] = Counter()

    def counted(sentences: Iterator[str]) -> Iterator[str]:
        counts["documents"] += 1
        for sentence in sentences:
            counts["sentences"] += 1
            yield sentence

    read = map(counted, read_documents(unit.texts, documents, sentences))
    examples = format.form(read, pass_seed(seed, unit.number), in_turns=documents == "file")
    with atomic(folder / unit.shard) as path:
        with os_errors(path), tf.io.TFRecordWriter(str(path)) as writer:
            for example in examples:
                writer.write(_record(example))
                counts["examples"] += 1
                counts["tokens"] += len(example.first) + len(example.second)
                if example.label is not None:
                    labels[str(example.label)] += 1
        row = {"file": unit.shard, "bytes": path.stat().st_size, "sha256": sha256(path)}
    row |= {name: counts[name] for name in COUNTS}
    row["labels"] = dict(sorted(labels.items()))
    write(folder / unit.counts, as_json(row))
    return row


def finish(
    folder: Path, job: Mapping[str, Any], units: Iterable[Unit], names: Sequence[str] = COUNTS
) -> dict[str, Any]:
    """Writes the data card of a folder whose shards are complete, and returns it.

    The card has the entries of the job, the sums of the counts ``names`` and of labels, and a row
    for each of the ``shards``.

    Raises:
        ValueError: if there is no text.
        OSError: if a shard is not complete.
    """
    if (folder / CARD).is_file():
        card = parsing.read_json(folder / CARD)
    else:
        rows = [read_counts(folder / unit.counts, names) for unit in units]
        counts: dict[str, Any] = {name: sum(row[name] for row in rows) for name in names}
        labels: Counter[str] = Counter()
        for row in rows:
            labels.update(row.get("labels", {}))
        if not counts["examples"]:
            sources = [str(source.get("name")) for source in job["files"]]
            raise ValueError(f"There is no text in {join_names(sources)}.")
        if "labels" in rows[0]:
            counts["labels"] = dict(sorted(labels.items()))
        card = {**job, "counts": counts, "shards": rows}
        write(folder / CARD, as_json(card))
    end(folder)
    return card


def read_counts(file: Path, names: Iterable[str]) -> dict[str, Any]:
    """Returns the row of a shard in the data card, which was written next to the shard.

    Raises:
        ValueError: if it is damaged, lacks one of the numbers, or has invalid ``labels``.
    """
    row = parsing.read_json(file)
    labels = row.get("labels", {}) if isinstance(row, dict) else None
    if not isinstance(labels, dict) or not all(
        type(count) is int for count in (*labels.values(), *map(row.get, names))
    ):
        raise ValueError(f"{file} is not the description of a shard; remove it to write it again.")
    return row


def end(folder: Path) -> None:
    """Removes the files that the data card replaces, and temporary files of killed writers."""
    remove_all_leftovers(folder)
    remove_files(folder, (_JOB, _COUNTS))


def remove(folder: Path) -> None:
    """Removes the shards of a folder and their descriptions, and the folder if it is then empty."""
    remove_files(folder, _NAMES)


def _record(example: Segments) -> bytes:
    features = {"first": example.first}
    if example.second:
        features["second"] = example.second
    if example.label is not None:
        features["label"] = [example.label]
    record = tf.train.Example()
    for name, values in features.items():
        record.features.feature[name].int64_list.value.extend(values)
    return record.SerializeToString(deterministic=True)


_FEATURES = {
    **{
        name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
        for name in ("first", "second")
    },
    "label": tf.io.FixedLenFeature([], tf.int64, -1),
}


class Shards(FormedExamples):
    """Reads the examples in folders of shards, with a buffer of them in memory.

    In each pass the order of the shards is drawn; sixteen of them are read in turns, and
    ``shuffle`` examples at a time are shuffled.

    Args:
        folders: folders with a data card.
        format: the format of the examples, with the tokenizer, length, name and task of the cards.
        shuffle: the number of examples that are shuffled at a time; 1 for the order of the shards.
        seed: the seed of the order and the masks.

    Raises:
        ValueError: if a folder has no data card, or its card describes other examples; a shard is
            missing or has another size; or ``shuffle`` is below 1.
    """

    def __init__(
        self,
        folders: Iterable[str | Path],
        format: Format,
        *,
        shuffle: int = 10_000,
        seed: int = 0,
    ):
        super().__init__(format, shuffle, seed)
        self.cards = {Path(folder): read_card(folder) for folder in folders}
        expected = {
            "tokenizer_sha256": tokenizer_digest(format.tokenizer),
            "length": format.length,
            "format": format.name,
            "task": format.task if format.pairs else None,
        }
        for folder, card in self.cards.items():
            for name, value in expected.items():
                if card[name] != value:
                    raise ValueError(
                        f"{folder} has examples of another {name}: {card[name]!r}, "
                        f"expected {value!r}."
                    )
        rows = [(f, row) for f, card in self.cards.items() for row in card["shards"]]
        self._files = [str(folder / row["file"]) for folder, row in rows]
        # The index of each shard's first example: masks stay with an example in any order.
        self._counts = numbers = [int(row["examples"]) for _, row in rows]
        self._first = np.cumsum([0, *numbers[:-1]], dtype="int64")

    def count(self) -> int:
        """Returns the number of examples in each pass, from the data cards."""
        return sum(card["counts"]["examples"] for card in self.cards.values())

    def count_sentences(self) -> int:
        """Returns the number of sentences of the text, from the data cards."""
        for folder, card in self.cards.items():
            check_shards(folder / CARD, card, "sentences")
        return sum(card["counts"]["sentences"] for card in self.cards.values())

    def _labels(self) -> Counter[int | None]:
        labels: Counter[int | None] = Counter()
        for card in self.cards.values():
            labels.update({int(n): count for n, count in card["counts"].get("labels", {}).items()})
        labels[None] = self.count() - labels.total()
        return labels

    def _source(self) -> str:
        return join_names(map(str, self.cards))

    def _batched(
        self, batch_size: int, copies: int | None, passes: int | None, start: int
    ) -> tf.data.Dataset:
        def one_pass(number: tf.Tensor) -> tf.data.Dataset:
            seed = pass_seed(self.seed, number)
            copy = seed if copies is None else pass_seed(self.seed, number % copies)

            def shuffled(block: tf.Tensor, indices: tf.Tensor, records: tf.Tensor) -> tuple:
                order = drawn(tf.range(tf.size(indices)), [seed, block + 1])
                rows = tf.gather(indices, order) % SEEDS
                seeds = tf.stack([tf.fill(tf.shape(rows), copy), rows], 1)
                return tf.gather(records, order), tf.cast(seeds, tf.int32)

            # tf.data's own shuffling also depends on TensorFlow's global seed.
            drawn = tf.random.experimental.stateless_shuffle
            order = tf.range(len(self._files))
            if self.shuffle > 1:
                order = drawn(order, [seed, 0])
            shards = (self._files, self._first, np.asarray(self._counts, "int64"))
            shards = tuple(tf.gather(column, order) for column in shards)
            records = tf.data.Dataset.from_tensor_slices(shards).interleave(
                _indexed, cycle_length=_IN_TURNS if self.shuffle > 1 else 1
            )
            blocks = records.batch(self.shuffle).enumerate()
            return blocks.map(lambda block, batch: shuffled(block, *batch))

        first, skipped = divmod(start, self.count())
        numbers = tf.data.Dataset.counter(first)
        if passes is not None:
            numbers = numbers.take(max(passes - first, 0))
        records = numbers.flat_map(one_pass).unbatch().skip(skipped)
        return records.batch(batch_size).map(_parsed)


def _indexed(file: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a shard with their indices, which start with ``first``."""
    indices = tf.data.Dataset.range(first, tf.int64.max, output_type=tf.int64)
    return tf.data.Dataset.zip(indices, read_tfrecords(file, count, _FEATURES))


def _parsed(records: tf.Tensor, seeds: tf.Tensor) -> tuple:
    features = tf.io.parse_example(records, _FEATURES)
    first, second, label = (tf.cast(features[name], tf.int32) for name in _FEATURES)
    return first, second, label, seeds


def read_card(folder: str | Path) -> dict[str, Any]:
    """Returns the data card of a folder.

    Raises:
        ValueError: if it is missing, damaged, or of another version, or a shard is missing or of
            another size.
    """
    path = Path(folder) / CARD
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CARD}, expected a folder that serving/batch/corpus.py has completed."
        )
    card = parsing.read_json(path)
    if not isinstance(card, dict) or card.get("version") != VERSION:
        version = card.get("version") if isinstance(card, dict) else None
        raise ValueError(f"{path}: version is {truncated_repr(version)}, expected {VERSION}.")
    for name, kind in (("tokenizer_sha256", str), ("format", str), ("length", int), ("task", str)):
        if type(card.get(name)) is not kind and not (name == "task" and card.get(name) is None):
            raise ValueError(f"{path} is not a data card: it has no {name}.")
    check_shards(path, card, "examples")
    numbers = [row.get("examples") for row in card["shards"]]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError(f"{path} is not a data card: a shard has no number of examples.")
    labels = card["counts"].get("labels", {})
    if (
        not isinstance(labels, dict)
        or not {"0", "1"}.issuperset(labels)
        or not all(type(number) is int for number in labels.values())
    ):
        raise ValueError(f"{path} is not a data card: it has invalid labels.")
    return card


def check_shards(file: Path, card: Any, count: str) -> None:
    """Checks the shards that a data card lists.

    Args:
        file: the card; the shards are in its directory.
        card: its content.
        count: the name of a number that ``counts`` and each shard have to have.

    Raises:
        ValueError: if the card lacks these, or a shard is missing or has another size.
    """
    try:
        rows = [(row["file"], row["bytes"]) for row in card["shards"]]
        numbers = [card["counts"][count], *(size for _, size in rows)]
        numbers += [row[count] for row in card["shards"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is not a data card: {truncated(repr(error))}.") from None
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError(f"{file} is not a data card: it has an invalid count or size.")
    for name, expected in rows:
        shard = file.parent / str(name)
        if shard.name != name:
            raise ValueError(
                f"{file}: a shard is {truncated_repr(name)}, expected a file name in its folder."
            )
        size = shard.stat().st_size if shard.is_file() else None
        if size != expected:
            actual = "missing" if size is None else f"{size:,} bytes"
            raise ValueError(f"{shard} is {actual}, expected {expected:,} bytes.")


def as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
