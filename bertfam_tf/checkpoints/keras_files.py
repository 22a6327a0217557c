"""Limits of files in Keras' own format, ``NAME.keras``: a ZIP archive of a config and weights.

Keras itself refuses members and tensors that expand to more than 4 GiB.
"""

import io
import json
import math
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import keras

from bertfam_tf import parsing
from bertfam_tf.checkpoints import hdf5
from bertfam_tf.sources import CheckpointError

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
# Keras writes its members uncompressed.
_MAX_COMPRESSION = 64
# Numbers that a layer may compute instead of storing them.
_UNSTORED = 1 << 24
_REMEDY = "Save the model again."


def check(file: Path) -> None:
    """Checks a file against the sizes that its members, tensors and config declare.

    Raises:
        CheckpointError: if a member or a tensor expands to more than is stored, or the config
            describes a model with more weights than the file has.
        Exception: of many types, if the file is damaged.
    """
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            limit = parsing.MAX_BYTES
            if member.filename != _CONFIG:
                limit = max(limit, member.compress_size * _MAX_COMPRESSION)
            if member.file_size > limit:
                raise CheckpointError(
                    f"{file}: {member.filename} has {member.file_size:,} bytes, expected at most "
                    f"{limit:,}."
                )
        config = json.loads(archive.read(_CONFIG))
        if _WEIGHTS not in archive.namelist():
            return
        with h5py.File(io.BytesIO(archive.read(_WEIGHTS))) as weights:
            tensors = hdf5.stored_tensors(file, weights, _REMEDY)
            stored = sum(dataset.size for _, dataset in tensors)
    config.pop("compile_config", None)
    # In a separate thread, as in ``models.count_parameters``.
    with ThreadPoolExecutor(max_workers=1) as thread:
        declared = thread.submit(_declared, config).result()
    if declared > stored + _UNSTORED:
        raise CheckpointError(
            f"{file}: {_CONFIG} describes a model with {declared:,} weights, but only {stored:,} "
            f"are stored. {_REMEDY}"
        )


def _declared(config: dict[str, Any]) -> int:
    """Returns the number of a model's weights, which are not allocated."""
    with keras.StatelessScope(initialize_variables=False):
        model = keras.saving.deserialize_keras_object(config, safe_mode=True)
        return sum(math.prod(weight.shape) for weight in model.weights)
