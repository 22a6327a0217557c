"""Pictures of attention, heads and words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.analysis.attention import AttentionMaps
from bertfam_tf.analysis.attribution import Attribution
from bertfam_tf.analysis.heads import Ablation
from bertfam_tf.files import atomic

# In inches.
_CELL, _WORD, _BAR = 0.9, 0.13, 0.22


def _figure(width: float, height: float) -> Any:
    """An empty figure.

    Raises:
        ValueError: without matplotlib.
    """
    try:
        # Without pyplot, which needs a display on some systems and keeps figures in memory.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("Pictures need matplotlib: pip install 'bertfam_tf[plots]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def _write(figure: Any, file: str | Path) -> Path:
    target = Path(file)
    with atomic(target) as path:
        figure.savefig(path, dpi=120, format="png")
    return target


def draw_heads(maps: AttentionMaps, file: str | Path) -> Path:
    """Draws the attention of all heads: a row for each layer; queries are rows of a panel.

    Args:
        maps: from ``attention_maps``.
        file: the PNG file to write.

    Raises:
        ValueError: without matplotlib.
        OSError: if the file cannot be written.
    """
    rows, columns = len(maps.layers), max(len(each) for each in maps.layers)
    figure = _figure(_CELL * columns + 0.5, _CELL * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False)
    for i, layer in enumerate(maps.layers):
        for j, panel in enumerate(panels[i]):
            panel.set_xticks([])
            panel.set_yticks([])
            if j >= len(layer):
                panel.axis("off")
                continue
            panel.imshow(layer[j], cmap="Blues", vmin=0, vmax=1, aspect="auto")
            if i == 0:
                panel.set_title(f"head {j}", fontsize=7)
            if j == 0:
                panel.set_ylabel(f"layer {i}", fontsize=7)
    return _write(figure, file)


def draw_attention(maps: AttentionMaps, layer: int, head: int, file: str | Path) -> Path:
    """Draws the attention of one head, with its tokens.

    Args:
        maps: from ``attention_maps``.
        layer, head: indices from 0.
        file: the PNG file to write.

    Raises:
        ValueError: for a layer or head that is not there, or without matplotlib.
        OSError: if the file cannot be written.
    """
    for name, index, count in (("layer", layer, len(maps.layers)), ("head", head, None)):
        count = len(maps.layers[layer]) if count is None else count
        if not 0 <= index < count:
            raise ValueError(f"{name} must be from 0 to {count - 1}, got {index}.")
    size = 1.5 + 0.25 * len(maps.tokens)
    figure = _figure(size, size)
    panel = figure.subplots()
    panel.imshow(maps.layers[layer][head], cmap="Blues", vmin=0, vmax=1)
    places = range(len(maps.tokens))
    panel.set_xticks(places, _plain(maps.tokens), rotation=90, fontsize=8)
    panel.set_yticks(places, _plain(maps.tokens), fontsize=8)
    panel.set_xlabel("attends to")
    panel.set_title(f"layer {layer}, head {head}", fontsize=9)
    return _write(figure, file)


def draw_ablation(found: Ablation, file: str | Path, score: str = "score") -> Path:
    """Draws a heat map of the change of a score without each head, and without each layer's heads.

    Args:
        found: from ``ablation``.
        file: the PNG file to write.
        score: its name.

    Raises:
        ValueError: without matplotlib.
        OSError: if the file cannot be written.
    """
    rows, columns = len(found.heads), max(len(each) for each in found.heads)
    values = np.full((rows, columns + 2), np.nan)
    for i, heads in enumerate(found.heads):
        values[i, : len(heads)] = heads
    values[:, -1] = found.layers
    figure = _figure(0.62 * (columns + 2) + 1.5, 0.45 * rows + 1.2)
    panel = figure.subplots()
    limit = max(float(np.nanmax(np.abs(values))), 1e-9)
    image = panel.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    _write_values(panel, values, "+.3f", np.abs(values) > 0.6 * limit)
    panel.set_xticks([*range(columns), columns + 1], [*map(str, range(columns)), "all"], fontsize=8)
    panel.set_yticks(range(rows), [f"layer {i}" for i in range(rows)], fontsize=8)
    panel.set_xlabel("head that is switched off")
    panel.set_title(f"change of {score}, {found.score:.3f} with all heads", fontsize=9)
    figure.colorbar(image, ax=panel, shrink=0.8)
    return _write(figure, file)


def draw_words(found: Attribution, file: str | Path) -> Path:
    """Draws a bar for each word: what it adds to the score, or takes from it.

    Args:
        found: from ``explain``.
        file: the PNG file to write.

    Raises:
        ValueError: without matplotlib.
        OSError: if the file cannot be written.
    """
    words = found.words
    figure = _figure(5.0, 0.8 + _BAR * max(len(words), 1))
    panel = figure.subplots()
    shares = [share for _, share in words]
    colours = ["#2563eb" if share >= 0 else "#dc2626" for share in shares]
    panel.barh(range(len(words)), shares, color=colours)
    panel.set_yticks(range(len(words)), _plain([word.text for word, _ in words]), fontsize=8)
    panel.invert_yaxis()
    panel.axvline(0, color="0.6", linewidth=0.8)
    panel.set_title(f"{found.target}: {found.baseline:.2f} to {found.score:.2f}", fontsize=9)
    return _write(figure, file)


def draw_similarity(
    found: np.ndarray, file: str | Path, names: tuple[str, str] = ("first", "second")
) -> Path:
    """Draws the similarity of the layers of two models.

    Args:
        found: from ``layer_similarity``.
        file: the PNG file to write.
        names: of the two models.

    Raises:
        ValueError: without matplotlib.
        OSError: if the file cannot be written.
    """
    rows, columns = found.shape
    figure = _figure(0.5 * columns + 1.8, 0.45 * rows + 1.2)
    panel = figure.subplots()
    image = panel.imshow(found, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    _write_values(panel, found, ".2f", found < 0.6)
    panel.set_xticks(range(columns))
    panel.set_yticks(range(rows))
    panel.set_xlabel(f"layers of {names[1]}")
    panel.set_ylabel(f"layers of {names[0]}")
    figure.colorbar(image, ax=panel, shrink=0.8)
    return _write(figure, file)


def _write_values(panel: Any, values: np.ndarray, format: str, dark: np.ndarray) -> None:
    """Writes numbers into the cells of a heat map, in white where it is dark; none for NaN."""
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if dark[i, j] else "black"
            panel.text(
                j, i, f"{value:{format}}", ha="center", va="center", fontsize=6, color=colour
            )


def _plain(texts: Sequence[str]) -> list[str]:
    """Texts that matplotlib does not read as mathematics."""
    return [text.replace("$", r"\$") for text in texts]
