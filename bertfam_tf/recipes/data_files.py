"""Digests of a run's data files, by which a run notices that they have changed."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertfam_tf.data.reading import expanded, is_published
from bertfam_tf.recipes.reading import source
from bertfam_tf.sources import sha256

# Of the splits, a run reads these; `bertfam evaluate` reads the test split.
_SPLITS = ("train", "dev")
# Larger data, such as corpora, are compared by the files' sizes, because reading them takes long.
_LARGEST = 1 << 28  # bytes of all files
# The end of a size, in place of a digest.
_BYTES = " bytes"


def digests(recipe: Any, whole: bool | None = None) -> dict[str, dict[str, str]]:
    """Returns the digests of a recipe's data files, by their place in the recipe and by path.

    Files that do not exist, directories and published data sets are left out.

    Args:
        recipe: the recipe.
        whole: whether files are compared by their content, or by their sizes; None for the content
            unless it is large.
    """
    found: dict[str, list[Path]] = {}
    for place, name in _names(dataclasses.asdict(recipe), ""):
        if is_published(name):
            continue
        try:
            files = [Path(file) for file in expanded(source(name))]
        except ValueError:  # reading the data says it better
            continue
        found.setdefault(place, []).extend(file for file in files if file.is_file())
    sizes = {file: file.stat().st_size for files in found.values() for file in files}
    if whole is None:
        whole = sum(sizes.values()) <= _LARGEST
    return {
        place: {str(file): sha256(file) if whole else f"{sizes[file]}{_BYTES}" for file in files}
        for place, files in found.items()
        if files
    }


def check_unchanged(stored: Mapping[str, Any], recipe: Any, run: Path) -> None:
    """Compares the data files of a run with the digests from its start.

    Args:
        stored: the result of ``digests`` at the start of the run.
        recipe: its recipe.
        run: its directory.

    Raises:
        ValueError: if a file has changed, or a pattern matches other files. Data that is gone is no
            error: a finished run needs none.
    """
    # The files that are left may be small: each is compared as it was at the start.
    whole = not any(
        str(digest).endswith(_BYTES)
        for files in stored.values()
        if isinstance(files, Mapping)
        for digest in files.values()
    )
    for place, files in digests(recipe, whole).items():
        before = stored.get(place)
        if not isinstance(before, Mapping):
            continue
        # Not by path: a data directory may have moved.
        if list(files.values()) != list(before.values()):
            changed = [
                file
                for file, digest in files.items()
                if digest != before.get(file, digest) or digest not in before.values()
            ]
            names = ", ".join(changed) or f"{len(files)} files in place of {len(before)}"
            raise ValueError(
                f"The data of the run {run} has changed since it began ({place}: {names}). Choose "
                f"another output, or remove {run} to train on the new data."
            )


def _names(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yields the files that the data sections of a recipe name, each with its place."""
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        here = f"{place}.{key}" if place else str(key)
        if place.rpartition(".")[2] == "data" and key.partition("_")[0] in _SPLITS:
            yield from ((here, name) for name in _texts(inner))
        else:
            yield from _names(inner, here)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)
