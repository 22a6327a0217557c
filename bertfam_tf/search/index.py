"""Exact nearest-neighbor search in the vectors of an index, by faiss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertfam_tf.metrics import unit_length
from bertfam_tf.names import unknown
from bertfam_tf.search.storage import FILE, parts, read_description
from bertfam_tf.tasks import TextEmbedder, quantize_embeddings
from bertfam_tf.tasks.fingerprint import fingerprint

# The number of int8 vectors that are converted at a time for the search.
_CHUNK = 1 << 16
# For binary vectors, Hamming distances choose the candidates, which are rescored with the query's
# own values.
_CANDIDATES = 10


class Hit(NamedTuple):
    """A document that a search found.

    Fields:
        row: the row in the file, from 0.
        id: the id in the file; the row if it has none.
        score: the cosine; for binary vectors, the cosine of the query and the signs of the
            document's values.
        text: the document.
    """

    row: int
    id: str
    score: float
    text: str


class Index:
    """The documents of a file, by the embeddings that ``build`` wrote. Vectors are kept in memory.

    Args:
        directory: the directory of the index.

    Attributes:
        described: the content of ``index.json``.

    Raises:
        ValueError: if the directory is not an index, is not complete, or is damaged; or faiss is
            not installed (the message says how to install it).
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self.described = read_description(self.directory)
        if self.described.documents is None:
            raise ValueError(
                f"{self.directory} is not complete; the same bertfam index command resumes."
            )
        self._faiss = _faiss()
        self._parts = list(parts(self.directory, self.described))
        self._counts = np.cumsum([0, *(part.count for part in self._parts)])
        if self._counts[-1] != self.described.documents:
            raise ValueError(
                f"{self.directory / FILE} says {self.described.documents} documents, but its parts "
                f"have {self._counts[-1]}."
            )
        self._vectors = np.concatenate([part.vectors() for part in self._parts])

    def check(self, task: TextEmbedder) -> None:
        """Raises a ``ValueError`` if ``task`` is not the model of the index."""
        built, width = self.described, task.outputs[0].shape[-1]
        if (actual := fingerprint(task)) != built.model:
            raise ValueError(
                f"{self.directory} was built by another model: a {built.family} {built.name} of "
                f"{built.width} values, {built.model[:12]}; this one is a {task.backbone.family} "
                f"{type(task).__name__} of {width}, {actual[:12]}."
            )

    def search(
        self, task: TextEmbedder, queries: list[str], *, top: int = 10, prompt: str | None = None
    ) -> list[list[Hit]]:
        """Returns the nearest documents of each query, the best first.

        Args:
            task: the model of the index.
            queries: texts.
            top: the number of documents, at most all.
            prompt: the name of the prompt before each query; None for no prompt.

        Raises:
            ValueError: if the model is another one, the prompt is unknown, ``top`` is below 1, or
                texts are damaged.
        """
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}.")
        if prompt is not None and prompt not in task.prompts:
            raise ValueError(unknown("prompt", prompt, task.prompts))
        self.check(task)
        if not queries:
            return []
        vectors = task.predict(queries, prompt=prompt)
        scores, places = self.nearest(unit_length(vectors).astype("float32"), top)
        return [self._hits(*pair) for pair in zip(scores, places, strict=True)]

    def nearest(self, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the scores and numbers of the nearest documents, best first.

        Args:
            queries: float32 (queries, width), of length 1.
            top: the number of documents, at most all.

        Returns:
            float32 and int64 (queries, top).
        """
        top = min(top, len(self._vectors))
        if self.described.precision == "binary":
            return self._nearest_bits(queries, top)
        if self.described.precision == "float32":
            return self._nearest_floats(queries, self._vectors, top)
        low, high = np.asarray(self.described.ranges, "float32")
        steps = (high - low) / 255
        # A code c stands for the value low + (c + 128.5) · steps. Scores are computed from codes,
        # so that vectors need not be decoded.
        constant = queries @ (low + 128.5 * steps)
        scaled = np.ascontiguousarray(queries * steps)
        results = []
        for start in range(0, len(self._vectors), _CHUNK):
            codes = self._vectors[start : start + _CHUNK].astype("float32")
            scores, places = self._nearest_floats(scaled, codes, min(top, len(codes)))
            results.append((scores + constant[:, np.newaxis], places + start))
        scores, places = (np.concatenate(arrays, axis=1) for arrays in zip(*results, strict=True))
        return _best(scores, places, top)

    def _nearest_floats(
        self, queries: np.ndarray, vectors: np.ndarray, top: int
    ) -> tuple[np.ndarray, np.ndarray]:
        product = self._faiss.METRIC_INNER_PRODUCT
        return self._faiss.knn(queries, np.ascontiguousarray(vectors), top, metric=product)

    def _nearest_bits(self, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        width = self.described.width
        bits = quantize_embeddings(queries, "ubinary")
        count = min(_CANDIDATES * top, len(self._vectors))
        _, places = self._faiss.knn_hamming(bits, self._vectors, count)
        signs = np.unpackbits(self._vectors[places], axis=-1, count=width) * np.float32(2) - 1
        scores = np.einsum("qw,qcw->qc", queries, signs) / np.float32(np.sqrt(width))
        return _best(scores, places.astype("int64"), top)

    def _hits(self, scores: np.ndarray, places: np.ndarray) -> list[Hit]:
        of_part = np.searchsorted(self._counts, places, side="right") - 1
        documents: dict[int, tuple[int, str, str]] = {}
        for number in np.unique(of_part):
            mine = places[of_part == number]
            inside = (mine - self._counts[number]).tolist()
            documents |= dict(
                zip(mine.tolist(), self._parts[number].documents(inside), strict=True)
            )
        return [
            Hit(documents[place][0], documents[place][1], float(score), documents[place][2])
            for place, score in zip(places.tolist(), scores, strict=True)
        ]


def _best(scores: np.ndarray, places: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best of each row; among equal scores, the first document."""
    order = np.lexsort((places, -scores), axis=1)[:, :top]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(places, order, 1)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ValueError(
            "Searching needs the package faiss-cpu: pip install 'bertfam-tf[search]'."
        ) from error
    return faiss
