"""A report of a classifier's errors, on one HTML page."""

from __future__ import annotations

import html
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.data.inputs import examples
from bertfam_tf.data.labels import decoded
from bertfam_tf.files import HTML, check_kind, write
from bertfam_tf.names import NO_TEXT, truncated
from bertfam_tf.tasks import TextClassifier

_BINS = 10
_LISTED = 20
_POINT = " Point at a square to read its labels."
# The confusion matrix has names over its columns up to so many labels, and numbers up to so many;
# with more it is a picture of so many pixels.
_WITH_NAMES, _WITH_NUMBERS, _PICTURE = 5, 30, 640
# A label is suspected where another one is predicted with at least this score.
_SURE = 0.9
_STYLE = """
body { font: 15px/1.55 system-ui, sans-serif; color: #1f2937; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .5rem; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid #e2e8f0; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
p.note { color: #64748b; }
td.text { min-width: 9rem; max-width: 34rem; overflow-wrap: anywhere; }
svg { overflow: visible; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
div.wide { overflow-x: auto; }
table.matrix td, table.matrix th { padding: .2rem .45rem; border: 1px solid #e2e8f0; }
table.matrix th.name { white-space: nowrap; max-width: 20rem; overflow: hidden;
  text-overflow: ellipsis; font-weight: normal; }
table.matrix th.number { max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
"""


@dataclass(frozen=True)
class Report:
    """A classifier's answers for labelled examples.

    Attributes:
        labels: the names of the classes.
        texts: the texts of the examples; the texts of a pair are joined by " | ".
        right: int (examples,), indices of the right classes.
        scores: float (examples, classes).
    """

    labels: list[str]
    texts: list[str]
    right: np.ndarray
    scores: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        """int (examples,)."""
        return self.scores.argmax(axis=1)

    @property
    def accuracy(self) -> float:
        return float((self.predicted == self.right).mean())

    def confusion(self) -> np.ndarray:
        """Counts examples by their class and the predicted one: int (classes, classes)."""
        counts = np.zeros((len(self.labels),) * 2, int)
        np.add.at(counts, (self.right, self.predicted), 1)
        return counts

    def calibration(self) -> tuple[list[tuple[float, float, int]], float]:
        """Computes how often predictions are right, by score (Guo et al. 2017, arXiv 1706.04599).

        Returns:
            For each of ten equal intervals of the score, without empty ones, its mean, the accuracy
            and the number of examples; and the expected calibration error, the mean of their
            absolute differences over examples.
        """
        best = self.scores.max(axis=1)
        place = np.minimum((best * _BINS).astype(int), _BINS - 1)
        intervals, error = [], 0.0
        for i in range(_BINS):
            chosen = place == i
            if chosen.any():
                score = float(best[chosen].mean())
                accuracy = float((self.predicted == self.right)[chosen].mean())
                intervals.append((score, accuracy, int(chosen.sum())))
                error += abs(score - accuracy) * chosen.mean()
        return intervals, float(error)

    def worst(self, number: int = _LISTED) -> list[int]:
        """Returns indices of the wrong answers, by increasing score of the right class."""
        own = self.scores[np.arange(len(self.right)), self.right]
        wrong = np.flatnonzero(self.predicted != self.right)
        return [int(i) for i in wrong[np.argsort(own[wrong], kind="stable")][:number]]

    def suspected(self) -> list[int]:
        """Returns indices of examples whose label may be wrong, most suspicious first.

        Another label is predicted with a score of at least 0.9, by which they are sorted.
        """
        best = self.scores.max(axis=1)
        indices = np.flatnonzero((self.predicted != self.right) & (best >= _SURE))
        return [int(i) for i in indices[np.argsort(-best[indices], kind="stable")]]

    def duplicates(self) -> list[list[int]]:
        """Returns indices of examples with the same text, up to case, space and Unicode forms."""
        groups: dict[str, list[int]] = defaultdict(list)
        for i, text in enumerate(self.texts):
            groups[" ".join(unicodedata.normalize("NFKC", text).casefold().split())].append(i)
        return [group for group in groups.values() if len(group) > 1]

    def slices(self) -> list[tuple[str, int, float]]:
        """Returns names, numbers of examples and accuracies of classes and quarters by length."""
        hits = self.predicted == self.right
        rows = []
        for i, label in enumerate(self.labels):
            chosen = self.right == i
            if chosen.any():
                rows.append((f"label {label}", int(chosen.sum()), float(hits[chosen].mean())))
        lengths = np.array([len(text.split()) for text in self.texts])
        for part in np.array_split(np.argsort(lengths, kind="stable"), 4):
            if len(part):
                name = f"{lengths[part[0]]} to {lengths[part[-1]]} words"
                rows.append((name, len(part), float(hits[part].mean())))
        return rows

    def write(self, file: str | Path, title: str = "Report") -> Path:
        """Writes one self-contained HTML page.

        Raises:
            FileExistsError: if there is another kind of file.
            OSError: if it cannot be written.
        """
        check_kind(file, *HTML)
        bins, error = self.calibration()
        count = len(self.texts)
        parts = [
            f"<h1>{html.escape(title)}</h1><p>{count:,} examples, accuracy {self.accuracy:.4f}, "
            f"expected calibration error {error:.4f}.</p>",
            "<h2>Confusion</h2><p class='note'>Rows are labels, columns predictions, in the same "
            f"order.{_POINT if len(self.labels) > _WITH_NUMBERS else ''}</p>",
            _matrix(self.labels, self.confusion()),
            self._confused(),
            "<h2>Calibration</h2><p class='note'>How often predictions with such a score are right:"
            " dots on the line are scores that can be read as probabilities.</p>",
            _curve(bins),
            "<h2>Slices</h2>",
            self._slices(),
            "<h2>Worst mistakes</h2>",
            self._examples(self.worst()),
            f"<h2>Labels to check</h2><p class='note'>Another label is predicted with a score of "
            f"{_SURE} or more.</p>",
            self._examples(self.suspected()[:_LISTED]),
            "<h2>Duplicates</h2>",
            self._duplicates(),
        ]
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><title>'
            f"{html.escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}"
            "</body></html>\n"
        )
        write(Path(file), page.encode("utf-8", "replace"))
        return Path(file)

    def _confused(self) -> str:
        """The most frequent mistakes: a table of labels and predictions."""
        counts = self.confusion()
        np.fill_diagonal(counts, 0)
        order = np.argsort(-counts, axis=None, kind="stable")[:_LISTED]
        pairs = [divmod(int(i), len(self.labels)) for i in order if counts.flat[i]]
        if len(self.labels) < 3 or not pairs:
            return ""
        totals = self.confusion().sum(axis=1)
        rows = [
            [
                self.labels[right],
                self.labels[predicted],
                f"{counts[right, predicted]:,}",
                f"{counts[right, predicted] / totals[right]:.3f}",
            ]
            for right, predicted in pairs
        ]
        head = ["label", "predicted", "number", "share of the label"]
        return f"<h3>Most frequent mistakes</h3>{_table(head, rows)}"

    def _slices(self) -> str:
        """Labels, the least accurate first, and quarters by length."""
        rows = self.slices()
        lengths = [row for row in rows if not row[0].startswith("label ")]
        labels = sorted(rows[: len(rows) - len(lengths)], key=lambda each: each[2])
        tables = [
            _table(
                ["examples with", "number", "accuracy"],
                [[name, f"{n:,}", f"{x:.3f}"] for name, n, x in part],
            )
            for part in (lengths + labels[:_LISTED], labels[_LISTED:])
            if part
        ]
        more = f"<details><summary>{len(labels) - _LISTED:,} more labels</summary>"
        return tables[0] + (f"{more}{tables[1]}</details>" if len(tables) > 1 else "")

    def _examples(self, indices: Sequence[int]) -> str:
        if not indices:
            return "<p class='note'>None.</p>"
        rows = [
            [
                str(i),
                self.texts[i],
                self.labels[self.right[i]],
                self.labels[self.predicted[i]],
                f"{self.scores[i].max():.3f}",
            ]
            for i in indices
        ]
        return _table(["example", "text", "label", "predicted", "score"], rows)

    def _duplicates(self) -> str:
        groups = self.duplicates()
        if not groups:
            return "<p class='note'>None.</p>"
        # Duplicates with contradicting labels come first.
        groups.sort(key=lambda group: len({int(self.right[i]) for i in group}) == 1)
        rows = [
            [
                ", ".join(map(str, group)),
                self.texts[group[0]],
                ", ".join(sorted({self.labels[self.right[i]] for i in group})),
            ]
            for group in groups[:_LISTED]
        ]
        note = f"<p class='note'>{len(groups):,} texts occur more than once.</p>"
        return note + _table(["examples", "text", "labels"], rows)


def check_task(task: Any) -> None:
    """Raises ``ValueError`` for a task without reports: another one than a classifier."""
    if not isinstance(task, TextClassifier) or not hasattr(task, "temperature"):
        raise ValueError(f"Reports are for TextClassifier, got {type(task).__name__}.")


def report(task: TextClassifier, x: Any, y: Any, *, batch_size: int = 32) -> Report:
    """Computes a classifier's answers for labelled examples.

    Args:
        task: a classifier with one label for each example.
        x, y: texts and labels, as ``fit`` takes them in lists, arrays or pandas; no data sets.
        batch_size: the number of examples in a batch.

    Raises:
        ValueError: if the task is of another kind, a label is missing or not the task's, or there
            are no examples.
    """
    check_task(task)
    if y is None:
        raise ValueError("No labels were given with the texts.")
    x, y, _ = examples(x, y, None, task.fields)
    y = [label.decode() if isinstance(label, bytes) else label for label in y]
    task.components.targets.check(y)
    names = task.class_names
    answers = task.predict(x, batch_size=batch_size)
    if len(answers) != len(y):
        raise ValueError(f"Texts and labels differ in number: {len(answers)} and {len(y)}.")
    if not answers:
        raise ValueError(NO_TEXT)
    right = task.components.targets.encode(tf.convert_to_tensor(y), {}).numpy()
    columns = x if isinstance(x, tuple) else tuple(x.values()) if isinstance(x, dict) else (x,)
    texts = [" | ".join(str(decoded(t)) for t in row) for row in zip(*columns, strict=True)]
    return Report(names, texts, right, np.stack([answer["scores"] for answer in answers]))


def _matrix(labels: Sequence[str], counts: np.ndarray) -> str:
    """Draws the counts of labels (rows) and predictions (columns), with a color for their share."""
    labels = [truncated(label) for label in labels]  # each is in many cells
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if len(labels) > _WITH_NUMBERS:
        return _picture(labels, counts, shares)
    numbered = len(labels) > _WITH_NAMES
    shown = range(1, len(labels) + 1) if numbered else labels
    head = "".join(
        f'<th class="number" title="{html.escape(label)}">{html.escape(str(text))}</th>'
        for label, text in zip(labels, shown, strict=True)
    )
    lines = [f"<tr><th></th>{head}</tr>"]
    for i, label in enumerate(labels):
        cells = "".join(
            f'<td class="number" style="background: {_color(i == j, shares[i, j])}" '
            f'title="{html.escape(label)}, predicted {html.escape(other)}">'
            f"{f'{counts[i, j]:,}' if counts[i, j] else ''}</td>"
            for j, other in enumerate(labels)
        )
        number = f"{i + 1} " if numbered else ""
        lines.append(f'<tr><th class="name">{number}{html.escape(label)}</th>{cells}</tr>')
    return f'<div class="wide"><table class="matrix">{"".join(lines)}</table></div>'


def _picture(labels: Sequence[str], counts: np.ndarray, shares: np.ndarray) -> str:
    """Draws the matrix of many labels as SVG, without text; pointing at a square names it."""
    size = max(4.0, _PICTURE / len(labels))
    squares = "".join(
        f'<rect x="{j * size:.1f}" y="{i * size:.1f}" width="{size:.1f}" height="{size:.1f}" '
        f'fill="{_color(i == j, shares[i, j])}"><title>{html.escape(labels[i])}, predicted '
        f"{html.escape(labels[j])}: {counts[i, j]:,}</title></rect>"
        for i, j in np.argwhere(counts).tolist()
    )
    width = size * len(labels)
    return (
        f'<div class="wide"><svg width="{width:.0f}" height="{width:.0f}" role="img" '
        f'aria-label="confusion"><rect width="{width:.0f}" height="{width:.0f}" fill="none" '
        f'stroke="#cbd5e1"/>{squares}</svg></div>'
    )


def _color(right: bool, share: float) -> str:
    """Blue for right answers and red for wrong ones, the stronger the larger their share is."""
    strength = 0 if share == 0 else 0.15 + 0.6 * share
    return f"rgba({'37, 99, 235' if right else '220, 38, 38'}, {strength:.2f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(tag: str, text: str) -> str:
        plain = text.replace(",", "").replace(".", "", 1).isdecimal()
        kind = ' class="number"' if plain else ' class="text"' if tag == "td" else ""
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    lines = ["".join(cell("th", text) for text in head)]
    lines += ["".join(cell("td", text) for text in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{body}</table></div>'


def _curve(bins: Sequence[tuple[float, float, int]]) -> str:
    """Draws accuracy by score, as SVG; areas of dots are numbers of examples."""
    size, margin = 240, 34
    most = max((count for *_, count in bins), default=1)

    def x(value: float) -> float:
        return margin + value * size

    def y(value: float) -> float:
        return 8 + (1 - value) * size

    dots = "".join(
        f'<circle cx="{x(score):.1f}" cy="{y(accuracy):.1f}" r="{2 + 8 * (n / most) ** 0.5:.1f}" '
        f'fill="#2563eb" fill-opacity="0.7"><title>score {score:.3f}, right {accuracy:.3f}, '
        f"{n:,} examples</title></circle>"
        for score, accuracy, n in bins
    )
    ticks = "".join(
        f'<text x="{x(v):.0f}" y="{size + 24}" font-size="11" text-anchor="middle">{v:g}</text>'
        f'<text x="{margin - 6}" y="{y(v) + 4:.0f}" font-size="11" text-anchor="end">{v:g}</text>'
        for v in (0, 0.5, 1)
    )
    return (
        f'<svg width="{size + margin + 12}" height="{size + 32}" role="img" '
        f'aria-label="accuracy by score"><rect x="{margin}" y="8" width="{size}" height="{size}" '
        f'fill="none" stroke="#e2e8f0"/><line x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}" '
        f'stroke="#94a3b8" stroke-dasharray="4"/>{dots}{ticks}</svg>'
    )
