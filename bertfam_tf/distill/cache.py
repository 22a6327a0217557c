"""A cache of a teacher's outputs, computed once and read from files in each epoch.

A folder has TFRecord files of several batches each, and a card, which is written last. A record is
one of the student's inputs with its targets and the teacher's outputs, without padding.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import parsing
from bertfam_tf.corpora import shards
from bertfam_tf.corpora.shards import CARD
from bertfam_tf.data.batching import training_options
from bertfam_tf.data.errors import os_errors
from bertfam_tf.data.tfrecords import read_tfrecords
from bertfam_tf.files import atomic, exclusive_lock, write
from bertfam_tf.names import truncated_repr

VERSION = 3
# The teacher's batch size, whatever the batches of the training are.
BATCH = 32
_BATCHES_PER_SHARD = 64
_SHARD, _COUNTS = "rows-{:05}.tfrecord", "counts-{:05}.json"
_SHUFFLED = 1 << 14


class Cache:
    """A folder with the batches of a distillation.

    Args:
        folder: a new folder, or one that was written for the same batches and teachers.
        batches: batches of at most ``BATCH`` examples, always in the same order; the arguments of
            ``compute``.
        compute: returns the batch to store, with the teachers' outputs in place of their inputs.
        described: JSON values that the outputs also depend on, such as the teachers' sha256.
        pads: padding values by the path of a tensor in the batch; 0 for others.

    Raises:
        ValueError: if the folder has other files, or outputs of another job; the error names the
            difference.
        BlockingIOError: if another process is writing to it.
    """

    def __init__(
        self,
        folder: str | Path,
        batches: tf.data.Dataset,
        compute: Callable[..., Any],
        described: Mapping[str, Any],
        pads: Mapping[tuple, int],
    ):
        self.folder = Path(folder)
        self._compute = tf.function(compute, autograph=False)
        self._pads = dict(pads)
        concrete = self._compute.get_concrete_function(*batches.element_spec)
        self._spec: Any = concrete.structured_outputs
        with exclusive_lock(self.folder, self.folder / ".lock"):
            job = {"version": VERSION, **described, "data_sha256": _data_digest(batches)}
            shards.begin(self.folder, job)
            if not (self.folder / CARD).is_file():
                self._write(batches, concrete, job)
        rows = parsing.read_json(self.folder / CARD).get("rows")
        numbers = rows if isinstance(rows, list) else [-1]
        if not all(type(number) is int and number >= 0 for number in numbers) or not (
            0 < sum(numbers) < 2**63
        ):
            raise ValueError(
                f"{self.folder / CARD} is not the description of cached outputs: rows is "
                f"{truncated_repr(rows)}. Remove {self.folder} to compute them again."
            )
        self._rows = numbers
        self.count = sum(numbers)

    def dataset(
        self, batch_size: int, *, shuffle: bool = True, seed: int | None = None
    ) -> tf.data.Dataset:
        """Returns batches as from ``compute``, with float32 in place of float16.

        Args:
            batch_size: the rows of a batch.
            shuffle: whether to shuffle rows, with a buffer of 16,384.
            seed: the seed of an order that is the same in each epoch; None for a new order in each
                epoch.
        """
        files = [self.folder / _SHARD.format(number) for number in range(len(self._rows))]
        for file in files:
            parsing.check_regular(file)
        sizes = tf.constant(self._rows, tf.int64)
        stored = tf.data.Dataset.from_tensor_slices(([str(file) for file in files], sizes))
        rows = stored.flat_map(lambda file, count: read_tfrecords(file, count, self._features()))
        if shuffle:
            buffer = min(self.count, _SHUFFLED)
            rows = rows.shuffle(buffer, seed, reshuffle_each_iteration=seed is None)
        rows = rows.map(self._parsed, num_parallel_calls=tf.data.AUTOTUNE)
        paths = [path for path, _ in keras.tree.flatten_with_path(self._spec)]
        pads = keras.tree.map_structure_up_to(
            self._spec,
            lambda spec, path: tf.constant(self._pads.get(path, 0), spec.dtype),
            self._spec,
            keras.tree.pack_sequence_as(self._spec, paths),
        )
        batches = rows.padded_batch(batch_size, padding_values=pads).map(self._restored)
        size = -(-self.count // batch_size)
        batches = batches.apply(tf.data.experimental.assert_cardinality(size)).prefetch(2)
        return training_options(batches)

    def _write(self, batches: tf.data.Dataset, compute: Any, job: dict[str, Any]) -> None:
        """Writes the missing shards and the card."""
        number = int(batches.cardinality())
        files = -(-number // _BATCHES_PER_SHARD) if number > 0 else None
        bar = keras.utils.Progbar(number if number > 0 else None, unit_name="batch")
        done = 0
        while (self.folder / _COUNTS.format(done)).is_file():
            done += 1
        bar.update(done * _BATCHES_PER_SHARD)
        stream = iter(batches.skip(done * _BATCHES_PER_SHARD).prefetch(2))
        ended = files is not None and done >= files
        while not ended:
            rows = 0
            with (
                atomic(self.folder / _SHARD.format(done)) as path,
                os_errors(path),
                tf.io.TFRecordWriter(str(path)) as writer,
            ):
                for _ in range(_BATCHES_PER_SHARD):
                    batch = next(stream, None)
                    if batch is None:
                        ended = True
                        break
                    for record in self._records(compute(*tf.nest.flatten(batch))):
                        writer.write(record)
                        rows += 1
                    bar.add(1)
            write(self.folder / _COUNTS.format(done), json.dumps(rows))
            done += 1
            ended = ended or done == files
        counts = [_rows(self.folder / _COUNTS.format(number)) for number in range(done)]
        write(self.folder / CARD, json.dumps({**job, "rows": counts}, indent=1) + "\n")
        shards.end(self.folder)

    def _records(self, batch: Any) -> Iterator[bytes]:
        """Yields the records of a batch, without the padding at the end of a row."""
        specs, values = keras.tree.flatten(self._spec), keras.tree.flatten(batch)
        arrays = [np.asarray(value) for value in values]
        masks = np.asarray(batch[0]["padding_mask"])
        lengths = masks.shape[1] - np.argmax(masks[:, ::-1] > 0, axis=1)
        for row, length in enumerate(lengths):
            record = tf.train.Example()
            for i, (spec, array) in enumerate(zip(specs, arrays, strict=True)):
                cut = tuple(
                    slice(length if size is None else None) for size in spec.shape.as_list()[1:]
                )
                value = array[row][cut]
                feature = record.features.feature
                feature[f"{i}"].bytes_list.value.append(value.tobytes())
                feature[f"{i}/shape"].int64_list.value.extend(value.shape)
            yield record.SerializeToString(deterministic=True)

    def _features(self) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for i, spec in enumerate(keras.tree.flatten(self._spec)):
            features[f"{i}"] = tf.io.FixedLenFeature([], tf.string)
            features[f"{i}/shape"] = tf.io.FixedLenFeature([spec.shape.rank - 1], tf.int64)
        return features

    def _parsed(self, record: tf.Tensor) -> Any:
        stored = tf.io.parse_single_example(record, self._features())
        tensors = []
        for i, spec in enumerate(keras.tree.flatten(self._spec)):
            value = tf.io.decode_raw(stored[f"{i}"], spec.dtype)
            value = tf.reshape(value, stored[f"{i}/shape"])
            tensors.append(tf.ensure_shape(value, spec.shape[1:]))
        return keras.tree.pack_sequence_as(self._spec, tensors)

    def _restored(self, *batch: Any) -> Any:
        return keras.tree.map_structure(
            lambda x: tf.cast(x, tf.float32) if x.dtype == tf.float16 else x, batch
        )


def halved(x: Any) -> Any:
    """Returns ``x`` as float16, clipped to its range."""
    largest = float(np.finfo(np.float16).max)
    return tf.cast(tf.clip_by_value(tf.cast(x, tf.float32), -largest, largest), tf.float16)


def _rows(file: Path) -> int:
    """Reads the number of rows of a shard from its counts file."""
    count = parsing.read_json(file)
    if type(count) is not int:
        raise ValueError(
            f"{file} must have a number of rows, got {truncated_repr(count)}; remove it to compute "
            "them again."
        )
    return count


def _data_digest(batches: tf.data.Dataset) -> str:
    """Returns the sha256 of all batches, which tokenizes all texts once."""
    digest = hashlib.sha256()
    for batch in batches.prefetch(2):
        for value in keras.tree.flatten(batch):
            array = np.asarray(value)
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
