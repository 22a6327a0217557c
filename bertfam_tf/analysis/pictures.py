"""Pictures of attention, heads and words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.analysis.attention import AttentionMaps
from bertfam_tf.analysis.attribution import Attribution
from bertfam_tf.analysis.heads import Ablation
from bertfam_tf.analysis.patterns import Pattern
from bertfam_tf.files import PNG, atomic, check_kind
from bertfam_tf.user_warnings import renamed_arguments

_COLOURS = {
    Pattern.VERTICAL: "tab:blue",
    Pattern.DIAGONAL: "tab:orange",
    Pattern.VERTICAL_DIAGONAL: "tab:purple",
    Pattern.BLOCK: "tab:green",
    Pattern.HETEROGENEOUS: "tab:gray",
}
# In inches.
_CELL, _WORD, _BAR = 0.9, 0.13, 0.22


def _figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    """Returns a figure and its panels, as ``Figure.subplots`` returns them.

    Raises:
        ValueError: if matplotlib is not installed.
    """
    try:
        # Without pyplot, which needs a display on some systems and keeps figures in memory.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("Pictures need matplotlib: pip install 'bertfam_tf[plots]'.") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def _write(figure: Any, file: str | Path) -> Path:
    target = Path(file)
    check_kind(target, *PNG)
    with atomic(target) as path:
        figure.savefig(path, dpi=120, format="png")
    return target


@renamed_arguments(found="patterns")
def draw_heads(
    maps: AttentionMaps, file: str | Path, patterns: Sequence[Sequence[Pattern]] | None = None
) -> Path:
    """Draws the attention of all heads: a row for each layer; queries are rows of a panel.

    The darkest colour is the head's largest probability.

    Args:
        maps: the output of ``attention_maps``.
        file: the PNG file to write.
        patterns: the output of ``patterns``, for frames in their colours; None for no frames.

    Raises:
        ValueError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    rows, columns = len(maps.layers), max(len(heads) for heads in maps.layers)
    size = _CELL * columns + 0.5, _CELL * rows + 0.5
    figure, panels = _figure(*size, rows, columns, squeeze=False)
    for i, layer in enumerate(maps.layers):
        for j, panel in enumerate(panels[i]):
            panel.set_xticks([])
            panel.set_yticks([])
            if j >= len(layer):
                panel.axis("off")
                continue
            panel.imshow(layer[j], cmap="Blues", vmin=0, aspect="auto")
            if patterns is not None:
                for side in panel.spines.values():
                    side.set(color=_COLOURS[patterns[i][j]], linewidth=2)
            if i == 0:
                panel.set_title(f"head {j}", fontsize=7)
            if j == 0:
                panel.set_ylabel(f"layer {i}", fontsize=7)
    if patterns is not None:
        _legend(figure)
    return _write(figure, file)


def draw_patterns(shares: np.ndarray, file: str | Path) -> Path:
    """Draws how many of the heads of each layer have each pattern.

    Args:
        shares: the output of ``pattern_shares``.
        file: the PNG file to write.

    Raises:
        ValueError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    figure, panel = _figure(6.0, 1.4 + 0.3 * len(shares))
    left = np.zeros(len(shares))
    for column, pattern in zip(shares.T, Pattern, strict=True):
        panel.barh(range(len(shares)), column, left=left, color=_COLOURS[pattern])
        left += column
    panel.set_yticks(range(len(shares)), [f"layer {i}" for i in range(len(shares))], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0, 1)
    panel.set_xlabel("share of heads and examples")
    _legend(figure)
    return _write(figure, file)


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=pattern.value) for pattern, colour in _COLOURS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize=7)


def draw_attention(maps: AttentionMaps, layer: int, head: int, file: str | Path) -> Path:
    """Draws the attention of one head, with its tokens.

    Args:
        maps: the output of ``attention_maps``.
        layer, head: indices from 0.
        file: the PNG file to write.

    Raises:
        ValueError: if the layer or head does not exist, or matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    for name, index, count in (("layer", layer, len(maps.layers)), ("head", head, None)):
        count = len(maps.layers[layer]) if count is None else count
        if not 0 <= index < count:
            raise ValueError(f"{name} must be from 0 to {count - 1}, got {index}.")
    size = 1.5 + 0.25 * len(maps.tokens)
    figure, panel = _figure(size, size)
    panel.imshow(maps.layers[layer][head], cmap="Blues", vmin=0, vmax=1)
    places = range(len(maps.tokens))
    panel.set_xticks(places, _plain(maps.tokens), rotation=90, fontsize=8)
    panel.set_yticks(places, _plain(maps.tokens), fontsize=8)
    panel.set_xlabel("attends to")
    panel.set_title(f"layer {layer}, head {head}", fontsize=9)
    return _write(figure, file)


def draw_ablation(ablation: Ablation, file: str | Path, score: str = "score") -> Path:
    """Draws a heat map of the change of a score without each head, and without each layer's heads.

    Args:
        ablation: the output of ``ablation``.
        file: the PNG file to write.
        score: the name of the score.

    Raises:
        ValueError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    rows, columns = len(ablation.heads), max(len(row) for row in ablation.heads)
    values = np.full((rows, columns + 2), np.nan)
    for i, heads in enumerate(ablation.heads):
        values[i, : len(heads)] = heads
    values[:, -1] = ablation.layers
    figure, panel = _figure(0.62 * (columns + 2) + 1.5, 0.45 * rows + 1.2)
    _draw_changes(figure, panel, values, "+.3f")
    panel.set_xticks([*range(columns), columns + 1], [*map(str, range(columns)), "all"], fontsize=8)
    panel.set_yticks(range(rows), [f"layer {i}" for i in range(rows)], fontsize=8)
    panel.set_xlabel("head that is switched off")
    panel.set_title(f"change of {score}, {ablation.score:.3f} with all heads", fontsize=9)
    return _write(figure, file)


def draw_pairs(
    changes: np.ndarray,
    heads: Sequence[tuple[int, int]],
    file: str | Path,
    score: str = "score",
) -> Path:
    """Draws a heat map of the change of a score without pairs of heads.

    Args:
        changes: the output of ``pair_ablation``.
        heads: their (layer, head).
        file: the PNG file to write.
        score: the name of the score.

    Raises:
        ValueError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    size = 2.0 + 0.42 * len(heads)
    figure, panel = _figure(size + 0.8, size)
    _draw_changes(figure, panel, changes, "+.2g")
    names = [f"{layer}.{head}" for layer, head in heads]
    panel.set_xticks(range(len(heads)), names, rotation=90, fontsize=8)
    panel.set_yticks(range(len(heads)), names, fontsize=8)
    panel.set_xlabel("layer.head")
    panel.set_title(f"change of {score} without both heads", fontsize=9)
    return _write(figure, file)


def draw_projection(
    points: np.ndarray,
    file: str | Path,
    labels: Sequence[str] | None = None,
    share: float | None = None,
) -> Path:
    """Draws vectors in two dimensions.

    Args:
        points: float (texts, 2), the output of ``project``.
        file: the PNG file to write.
        labels: the labels of the texts, one colour per label; None for one colour.
        share: the proportion of variance that the points keep, for the title; None for no title.

    Raises:
        ValueError: if the numbers of labels and points differ, or matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    names = [""] * len(points) if labels is None else list(map(str, labels))
    if len(names) != len(points):
        raise ValueError(f"Expected one label per point ({len(points)}), got {len(names)}.")
    figure, panel = _figure(6.0, 4.8)
    for name in dict.fromkeys(names):
        chosen = points[[other == name for other in names]]
        panel.scatter(*chosen.T, s=14, alpha=0.7, label=_plain([name])[0])
    panel.set_xticks([])
    panel.set_yticks([])
    if labels is not None:
        panel.legend(fontsize=8)
    if share is not None:
        panel.set_title(f"first two principal components, {share:.0%} of the variance", fontsize=9)
    return _write(figure, file)


def draw_words(attribution: Attribution, file: str | Path) -> Path:
    """Draws a bar for each word: its contribution to the score, which may be negative.

    Args:
        attribution: the output of ``explain``.
        file: the PNG file to write.

    Raises:
        ValueError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    words = attribution.words
    figure, panel = _figure(5.0, 0.8 + _BAR * max(len(words), 1))
    shares = [share for _, share in words]
    colours = ["#2563eb" if share >= 0 else "#dc2626" for share in shares]
    panel.barh(range(len(words)), shares, color=colours)
    panel.set_yticks(range(len(words)), _plain([word.text for word, _ in words]), fontsize=8)
    panel.invert_yaxis()
    panel.axvline(0, color="0.6", linewidth=0.8)
    panel.set_title(
        f"{attribution.target}: {attribution.baseline:.2f} to {attribution.score:.2f}", fontsize=9
    )
    return _write(figure, file)


def draw_similarity(
    similarity: np.ndarray, file: str | Path, names: tuple[str, str] = ("first", "second")
) -> Path:
    """Draws the similarity of the layers of two models.

    Args:
        similarity: the output of ``layer_similarity``.
        file: the PNG file to write.
        names: the names of the two models.

    Raises:
        ValueError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    rows, columns = similarity.shape
    figure, panel = _figure(0.5 * columns + 1.8, 0.45 * rows + 1.2)
    image = panel.imshow(similarity, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    _write_values(panel, similarity, ".2f", similarity < 0.6)
    panel.set_xticks(range(columns))
    panel.set_yticks(range(rows))
    panel.set_xlabel(f"layers of {names[1]}")
    panel.set_ylabel(f"layers of {names[0]}")
    figure.colorbar(image, ax=panel, shrink=0.8)
    return _write(figure, file)


def _draw_changes(figure: Any, panel: Any, values: np.ndarray, format: str) -> None:
    """Returns a heat map of numbers around 0, with its scale."""
    limit = max(float(np.nanmax(np.abs(values))), 1e-9)
    image = panel.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    _write_values(panel, values, format, np.abs(values) > 0.6 * limit)
    figure.colorbar(image, ax=panel, shrink=0.8)


def _write_values(panel: Any, values: np.ndarray, format: str, dark: np.ndarray) -> None:
    """Writes numbers into the cells of a heat map, in white where it is dark; none for NaN."""
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if dark[i, j] else "black"
            panel.text(
                j, i, f"{value:{format}}", ha="center", va="center", fontsize=6, color=colour
            )


def _plain(texts: Sequence[str]) -> list[str]:
    """Escapes texts so that matplotlib does not read them as mathematics."""
    return [text.replace("$", r"\$") for text in texts]
