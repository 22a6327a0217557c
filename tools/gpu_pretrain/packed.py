"""Files of packed examples."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np


def write(file: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Writes the arrays, and the settings as one of them, compressed by LZMA."""

    text = np.frombuffer(json.dumps(settings).encode(), "uint8")
    with lzma.open(file, "wb") as output:
        np.savez(output, settings=text, **arrays)


def read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what ``write`` wrote."""
    with np.load(io.BytesIO(lzma.decompress(file.read_bytes())), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    return found, json.loads(found.pop("settings").tobytes())
