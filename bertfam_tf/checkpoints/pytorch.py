"""Reads ``pytorch_model.bin`` with torch's weights-only loader.

Such a file is a pickle, which can run arbitrary code when it is opened by any other loader.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bertfam_tf.checkpoints.tensors import Stored, Tensors, read_shards, type_name
from bertfam_tf.names import truncated_repr
from bertfam_tf.sources import CheckpointError

SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"


def matches(directory: Path) -> bool:
    """Returns whether the directory has weights of this kind."""
    return (directory / SINGLE).is_file() or (directory / INDEX).is_file()


def read(directory: Path) -> Tensors:
    """Returns the tensors of a directory that has such weights.

    Raises:
        CheckpointError: if torch is not installed, or a file is truncated, damaged, or contains
            anything except tensors; and as ``read_shards``.
    """
    return Tensors(read_shards(directory, SINGLE, INDEX, _tensors))


def _tensors(file: Path) -> Iterator[Stored]:
    for name, tensor in _load(file).items():
        if not isinstance(name, str) or not hasattr(tensor, "numpy"):
            raise CheckpointError(
                f"{file} is not a dict of tensors: it contains {truncated_repr(name)}."
            )
        if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
            raise CheckpointError(
                f"{file}: {name} is a {tensor.dtype} with the layout {tensor.layout}, expected a "
                "dense tensor of floats."
            )
        size = tensor.numel() * tensor.element_size()
        if size > tensor.untyped_storage().nbytes():
            raise CheckpointError(
                f"{file}: {name} declares {size:,} bytes, but the file contains "
                f"{tensor.untyped_storage().nbytes():,}."
            )
        read = functools.partial(_array, tensor)
        yield Stored(file, name, tuple(tensor.shape), type_name(tensor.dtype), read)


def _load(file: Path) -> dict[Any, Any]:
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            f"{file} is a pickle, which only torch can open safely, and torch is not installed: "
            "pip install torch; or use the checkpoint's model.safetensors if there is one."
        ) from error
    try:
        # Only zip archives can be memory-mapped, not files from before torch 1.6.
        with file.open("rb") as stream:
            zipped = stream.read(2) == b"PK"
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # torch raises many types of errors
        raise CheckpointError(
            f"{file} cannot be read as weights by torch; it may be truncated or damaged, or "
            f"contain more than tensors: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{file} is not a dict of tensors, but a {type(tensors).__name__}.")
    return tensors


def _array(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
