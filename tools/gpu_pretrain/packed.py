"""Files of packed examples."""

from __future__ import annotations

import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


def write(file: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Writes the arrays, and the settings as one of them, compressed by LZMA."""

    text = np.frombuffer(json.dumps(settings).encode(), "uint8")
    with lzma.open(file, "wb") as output:
        np.savez(output, settings=text, **arrays)


def read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what ``write`` wrote.

    Raises:
        ValueError: if the file is truncated, damaged or another one.
    """
    try:
        content = io.BytesIO(lzma.decompress(file.read_bytes()))
        # Not `np.load`, which also reads other kinds of files.
        with np.lib.npyio.NpzFile(content, own_fid=True, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        return found, json.loads(found.pop("settings").tobytes())
    except (lzma.LZMAError, zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
        raise ValueError(
            f"{file} has no packed examples; it may be truncated or damaged: {error}."
        ) from error
