"""Folders of augmented examples.

A folder has TFRecord files, each with the copies of consecutive examples, and ``card.json``, which
is written last. Records are ``tf.train.Example`` with the texts, as ``feature/NAME``, and the
serialized ``label``.
"""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf.corpora import shards
from bertfam_tf.corpora.shards import CARD, Unit
from bertfam_tf.data.errors import os_errors
from bertfam_tf.data.tfrecords import read_tfrecords
from bertfam_tf.distill.augmentation import Augmentation
from bertfam_tf.files import atomic, exclusive_lock, write
from bertfam_tf.names import truncated
from bertfam_tf.sources import sha256


def augment(
    rows: tf.data.Dataset,
    augmentation: Augmentation,
    directory: str | Path,
    *,
    shard_size: int = 1000,
    batch_size: int = 64,
    verbose: int = 1,
) -> tf.data.Dataset:
    """Augments examples and writes them to a folder, or reads them if the folder is complete.

    Each example is followed by its copies, which have its label: first copies of the first text,
    and for pairs, copies of the second text; the other text is unchanged. Copies only depend on the
    examples and the settings. An interrupted run resumes after the last complete shard.

    Args:
        rows: examples ``(features, label)``, as ``recipes.splits.read_split`` returns them: a dict
            of strings and a scalar. They are read twice and must have the same order.
        augmentation: creates the copies.
        directory: a folder for these examples only.
        shard_size: the number of examples whose copies are one file.
        batch_size: the number of words that the masked language model predicts at a time.
        verbose: 1 for a progress bar, 0 for none.

    Returns:
        A dataset with the structure of ``rows`` that reads the files in order.

    Raises:
        ValueError: if the folder has examples of other settings, another model or other rows;
            labels are not scalars, as in tagging; features are not strings; there are no rows; or
            their order differs when they are read again.
        OSError: if writing fails, or another process is writing to the folder.
    """
    spec = _checked(rows)
    if shard_size < 1 or batch_size < 1:
        raise ValueError(f"Sizes must be at least 1, got {shard_size=} and {batch_size=}.")
    folder = Path(directory)
    with exclusive_lock(folder, folder / ".lock"):
        first_pass = _Digest()
        for row in rows.as_numpy_iterator():
            first_pass(row)
        if not first_pass.count:
            raise ValueError("There are no rows to augment.")
        job = augmentation.settings() | {
            "rows_sha256": first_pass.sha256,
            "label": spec[1].dtype.name,
            "shard_size": shard_size,
        }
        shards.begin(folder, job)
        units = [Unit(i, ()) for i in range(-(-first_pass.count // shard_size))]
        todo = {unit.number for unit in shards.missing(folder, units)}
        if todo:
            second_pass = _Digest()
            bar = keras.utils.Progbar(first_pass.count, verbose=verbose, unit_name="example")
            examples = (second_pass(row) for row in rows.as_numpy_iterator())
            for unit in units:
                first, chunk = second_pass.count, list(islice(examples, shard_size))
                if unit.number in todo:
                    _write_shard(folder, unit, chunk, first, augmentation, batch_size)
                bar.update(second_pass.count)
            if second_pass.sha256 != first_pass.sha256:
                raise ValueError(
                    f"The rows differ from one pass to the next; remove {folder}, and do not "
                    "shuffle them before they are augmented."
                )
        card = shards.finish(folder, job, units, ("examples", "written"))
        shards.check_shards(folder / CARD, card, "written")
    return _dataset(folder, card, spec)


class _Digest:
    """Computes the sha256 and the number of rows that pass through it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def __call__(self, row: Any) -> Any:
        features, label = row
        fields = (field for name in sorted(features) for field in (name.encode(), features[name]))
        for field in (*fields, _label(label)):
            self._hash.update(len(field).to_bytes(8, "little") + field)
        self.count += 1
        return row

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _checked(rows: Any) -> Any:
    """Returns the structure of rows that can be augmented; raises ValueError for others."""
    if not isinstance(rows, tf.data.Dataset):
        raise ValueError(f"rows must be a tf.data.Dataset, got a {type(rows).__name__}.")
    if rows.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("rows must end, got a data set that is repeated without end.")
    spec = rows.element_spec
    if not (isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], dict)):
        raise ValueError(f"rows must have elements (features, label), got {truncated(spec)}.")
    for name, feature in spec[0].items():
        if not _is_scalar(feature) or feature.dtype != tf.string:
            raise ValueError(
                f"The feature {name!r} must be one string for each example, in rows that are not "
                f"batched; got {truncated(feature)}."
            )
    if not _is_scalar(spec[1]):
        raise ValueError(
            "Copies have the label of the original, which must be a scalar; got "
            f"{truncated(spec[1])}."
        )
    return spec


def _is_scalar(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0


def _label(label: Any) -> bytes:
    return tf.make_tensor_proto(label).SerializeToString(deterministic=True)


def _write_shard(
    folder: Path,
    unit: Unit,
    examples: list,
    first: int,
    augmentation: Augmentation,
    batch_size: int,
) -> None:
    """Writes the copies of examples, and then their counts, which mark the shard as complete.

    Args:
        folder: the folder of all shards.
        unit: names the shard's files.
        examples: ``(features, label)`` of each example.
        first: the index of the first example.
        augmentation: creates the copies.
        batch_size: the batch size of the masked language model.
    """
    names = sorted(examples[0][0])
    texts = [features[name] for features, _ in examples for name in names]
    words = iter(augmentation.replaceable_words(texts, batch_size=batch_size))
    written = 0
    with atomic(folder / unit.shard) as path:
        with os_errors(path), tf.io.TFRecordWriter(str(path)) as writer:
            for number, (features, label) in enumerate(examples, first):
                versions = [features]
                for index, name in enumerate(names):
                    copies = augmentation.copies_of(features[name], next(words), number, index)
                    versions += [{**features, name: copy} for copy in copies]
                serialized = _label(label)
                for version in versions:
                    writer.write(_record(version, serialized))
                written += len(versions)
        row = {"file": unit.shard, "bytes": path.stat().st_size, "sha256": sha256(path)}
    row |= {"examples": len(examples), "written": written}
    write(folder / unit.counts, shards.as_json(row))


def _record(features: dict[str, bytes], label: bytes) -> bytes:
    record = tf.train.Example()
    for name, text in features.items():
        record.features.feature[f"feature/{name}"].bytes_list.value.append(text)
    record.features.feature["label"].bytes_list.value.append(label)
    return record.SerializeToString(deterministic=True)


def _dataset(folder: Path, card: dict[str, Any], spec: Any) -> tf.data.Dataset:
    texts, label = spec
    keys = {name: f"feature/{name}" for name in texts}
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in (*keys.values(), "label")}

    @tf.autograph.experimental.do_not_convert
    def parsed(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        values = tf.io.parse_single_example(record, features)
        target = tf.ensure_shape(tf.io.parse_tensor(values["label"], label.dtype), [])
        return {name: values[key] for name, key in keys.items()}, target

    files = [str(folder / row["file"]) for row in card["shards"]]
    counts = [row["written"] for row in card["shards"]]
    written = tf.data.Dataset.from_tensor_slices((files, tf.constant(counts, tf.int64)))
    records = written.flat_map(lambda file, count: read_tfrecords(file, count, features))
    records = records.map(parsed, num_parallel_calls=tf.data.AUTOTUNE)
    return records.apply(tf.data.experimental.assert_cardinality(card["counts"]["written"]))
