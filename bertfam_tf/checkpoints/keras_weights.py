"""Keras' weight files, ``*.weights.h5``: HDF5, with one tensor for each variable."""

import re
from collections.abc import Iterator
from pathlib import Path

from bertfam_tf.checkpoints import hdf5
from bertfam_tf.checkpoints.tensors import Stored

_REMEDY = "Download the preset again, or save it again with KerasHub."


def table_name(name: str, repeats: int | None = None) -> str:
    """Converts a path to the form used in the families' tables.

    Each layer has its number, also the first (``dense_0``), or two numbers in groups of ``repeats``
    (``transformer_encoder_1.0``). Leading underscores, which differ between versions, are removed.
    """
    steps = [step.lstrip("_") for step in name.split("/")]
    # Files of early versions have a different name for the first component.
    steps[0] = "layers" if steps[0] == "layer_checkpoint_dependencies" else steps[0]
    if len(steps) > 1:
        match = re.fullmatch(r"(.*?)_(\d{1,6})", steps[1])
        stem, number = (match[1], int(match[2])) if match else (steps[1], 0)
        steps[1] = f"{stem}_{number}"
        if repeats and stem == "transformer_encoder":
            steps[1] = f"{stem}_{number // repeats}.{number % repeats}"
    return "/".join(steps)


def stored(file: Path) -> Iterator[tuple[str, Stored]]:
    """Returns the tensors of a file, by their paths.

    Raises:
        CheckpointError: as ``hdf5.read`` does.
    """
    return hdf5.read(file, _REMEDY)
