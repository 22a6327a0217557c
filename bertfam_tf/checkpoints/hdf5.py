"""HDF5 files of weights, from which only tensors are read that the file itself holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from bertfam_tf.checkpoints.tensors import Stored, type_name
from bertfam_tf.names import truncated
from bertfam_tf.sources import CheckpointError

# The maximum compression ratio of a dataset. Trained weights are hardly compressible; biases of
# zeros are, but are small.
_MAX_COMPRESSION, _SMALL = 64, 64 << 10


def read(file: Path, remedy: str) -> Iterator[tuple[str, Stored]]:
    """Returns the tensors of a file by their paths in it.

    Args:
        file: the file.
        remedy: a sentence for errors, how to get an undamaged file.

    Raises:
        CheckpointError: if the file is damaged, or a tensor is a link, has its values in another
            file, is not numeric, or declares more bytes than are stored.
    """
    tensors: list[tuple[str, Stored]] = []
    try:
        with h5py.File(file) as opened:
            for name, item in stored_tensors(file, opened, remedy):
                half = item.attrs.get("dtype") == "bfloat16"
                dtype = "BF16" if half else type_name(item.dtype)
                read = _reader(file, name, half)
                tensors.append((name, Stored(file, name, item.shape, dtype, read)))
    except CheckpointError:
        raise
    except Exception as error:  # h5py raises many types of errors for damaged files
        raise CheckpointError(
            f"{file} cannot be read as HDF5; it may be truncated or damaged: {truncated(error)}"
        ) from error
    yield from tensors


def stored_tensors(file: Path, opened: h5py.File, remedy: str) -> list[tuple[str, h5py.Dataset]]:
    """Returns the datasets of a file, all of which it holds itself.

    Args:
        file: its name, for errors.
        opened: the file.
        remedy: a sentence for errors, how to get an undamaged file.

    Raises:
        CheckpointError: if a tensor is a link, has its values in another file, is not numeric, or
            declares more bytes than are stored.
    """
    # Errors must not be raised inside HDF5's callbacks.
    links: list[tuple[str, str]] = []
    items: list[tuple[str, Any]] = []
    opened.visititems_links(lambda name, link: links.append((name, type(link).__name__)))
    for name, kind in links:
        if kind != h5py.HardLink.__name__:
            raise CheckpointError(
                f"{file}: {name} is a {kind}, possibly to another file; expected tensors "
                f"that are stored in the file itself. {remedy}"
            )
    opened.visititems(lambda name, item: items.append((name, item)))
    datasets = [(name, item) for name, item in items if isinstance(item, h5py.Dataset)]
    for name, dataset in datasets:
        _check_stored(file, name, dataset, remedy)
    return datasets


def _check_stored(file: Path, name: str, dataset: h5py.Dataset, remedy: str) -> None:
    """Raises an error for a dataset whose values are in another file or missing."""
    if dataset.is_virtual or dataset.external:
        raise CheckpointError(
            f"{file}: {name} has its values in another file; expected tensors that are stored in "
            f"the file itself. {remedy}"
        )
    if dataset.dtype.kind not in "fiubV" or not isinstance(dataset.shape, tuple):
        raise CheckpointError(f"{file}: {name} is not a numeric tensor, but {dataset.dtype}.")
    size = limit = dataset.id.get_storage_size()
    if size and dataset.id.get_create_plist().get_nfilters():  # possibly compressed
        limit = max(size * _MAX_COMPRESSION, _SMALL)
    if dataset.nbytes > limit:
        raise CheckpointError(
            f"{file}: {name} declares {dataset.nbytes:,} bytes, but the file contains {size:,}; it "
            f"may be truncated or damaged. {remedy}"
        )


def _reader(file: Path, name: str, half: bool):
    def read() -> np.ndarray:
        with h5py.File(file) as opened:
            # HDF5 has no bfloat16: Keras stores the bytes, and an attribute with the type.
            stored = opened[name]
            return np.array(stored, dtype=ml_dtypes.bfloat16 if half else None)

    return read
