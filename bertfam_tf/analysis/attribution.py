"""Attribution of an answer to words by integrated gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.analysis.tokens import Example, Word, packed_example, texts_of_example
from bertfam_tf.export.substitution import substituted_calls
from bertfam_tf.models.base import unpadding
from bertfam_tf.names import unknown
from bertfam_tf.tasks import Task
from bertfam_tf.user_warnings import warn

_TABLE = "token_embedding"
# Of the sum of attributions, relative to a difference of scores of at least this size.
_LARGEST_ERROR, _SMALL = 0.05, 0.2
_OTHER_TASK = "explain() is for classifiers, regressors, taggers and question answering, got {}."


@dataclass(frozen=True)
class Attribution:
    """How much each word of an example adds to a score.

    Attributes:
        example: the example, with its tokens and words.
        target: the label, or the word and its tag.
        score: the score of the target, before the softmax.
        baseline: the score if no word had an embedding.
        tokens: float32 (length,); their sum is ``score`` less ``baseline``, up to the error of the
            integral.
    """

    example: Example
    target: str
    score: float
    baseline: float
    tokens: np.ndarray

    @property
    def words(self) -> list[tuple[Word, float]]:
        """Words with their share, the sum over their tokens."""
        return [(word, float(self.tokens[list(word.tokens)].sum())) for word in self.example.words]


def explain(task: Task, x: Any, target: Any = None, *, steps: int = 32) -> Attribution:
    """Computes integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365) of an answer.

    The path goes from a text whose words have embeddings of 0 to the text itself; special tokens,
    positions and segments stay. The integral is a Gauss-Legendre quadrature.

    Args:
        task: a classifier, regressor, tagger or question answering, whose example is one row.
        x: a text; a tuple or a dict of texts for tasks with several.
        target: for classifiers a label, for taggers ``(word, tag)``, the word by its index in the
            answer of ``predict``; None
            for the answer, for regressors and for question answering, whose score is the sum of
            the logits of start and end.
        steps: the number of points of the integral. A warning says if it needs more.

    Raises:
        ValueError: if the task or target is of another kind, the backbone's embeddings are not of
            tokens, or the texts do not fit the task.
    """
    table = task.backbone.parts.get(_TABLE)
    if table is None:
        raise ValueError(f"The {task.backbone.family} backbone has no embeddings of tokens.")
    texts = texts_of_example(task, x)
    example = packed_example(task, texts)
    with unpadding(False):
        outputs = task(example.inputs, training=False)
    if isinstance(outputs, Mapping):
        raise ValueError(_OTHER_TASK.format(type(task).__name__))
    logits = keras.ops.convert_to_numpy(outputs)[0]
    indices, name = _target(task, example, texts, logits, target)
    ids = example.inputs["token_ids"]
    embedded = tf.cast(table(ids), "float32")
    special = tf.constant(example.special[np.newaxis, :, np.newaxis])
    start = tf.where(special, embedded, tf.zeros_like(embedded))
    places, weights = np.polynomial.legendre.leggauss(steps)
    # Of squares, because scores change most near 0 where a normalization follows the embeddings.
    roots = (places + 1) / 2
    weights = weights * roots
    shares = tf.constant(np.square(roots), "float32")[:, tf.newaxis, tf.newaxis]
    points = start + shares * (embedded - start)  # (steps, length, width)
    _, gradients = _scores(task, table, example, points, indices)
    mean = tf.einsum("s,sld->ld", tf.constant(weights, "float32"), gradients)
    attributions = tf.reduce_sum(mean * (embedded - start)[0], axis=-1).numpy()
    ends, _ = _scores(task, table, example, tf.concat([embedded, start], 0), indices)
    score, baseline = map(float, ends.numpy())
    total, expected = float(attributions.sum()), score - baseline
    if abs(total - expected) > _LARGEST_ERROR * max(abs(expected), _SMALL):
        warn(
            f"The attributions add up to {total:.3g}, but the score and the baseline differ by "
            f"{expected:.3g}: the integral needs more points than steps={steps}."
        )
    return Attribution(example, name, score, baseline, attributions)


def _scores(
    task: Task, table: Any, example: Example, points: tf.Tensor, places: list[tuple[int, ...]]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes scores (points,) for embeddings (points, length, width), and their gradients."""
    count = points.shape[0]
    inputs = {n: tf.repeat(tensor, count, axis=0) for n, tensor in example.inputs.items()}
    with tf.GradientTape() as tape:
        tape.watch(points)

        def embed(layer: Any, ids: Any) -> tf.Tensor:
            return tf.cast(points, layer.compute_dtype)

        with unpadding(False), substituted_calls({table: embed}):
            logits = task(inputs, training=False)
        scores = tf.add_n([tf.cast(logits[(slice(None), *place)], "float32") for place in places])
    return scores, tape.gradient(scores, points)


def _target(
    task: Any, example: Example, texts: dict[str, str], logits: np.ndarray, target: Any
) -> tuple[list[tuple[int, ...]], str]:
    """Returns the indices of the target's scores in an example's logits, and its name."""
    names, words = task.class_names, example.words
    if task.head_name == "span" or (logits.shape in ((), (1,)) and not names):
        if target is not None:
            raise ValueError(f"target must be None for a {type(task).__name__}, got {target!r}.")
        if task.head_name == "span":
            answers = task.answer({name: tf.constant([text]) for name, text in texts.items()})
            answer = answers["n_best_answers"][0, 0].numpy().decode()
            return _best_span(task, words, logits), answer
        return [(0,) if logits.ndim else ()], "score"
    if logits.ndim == 1 and names:
        if target is None:
            target = names[int(logits.argmax())]
        if target not in names:
            raise ValueError(unknown("label", target, names))
        return [(names.index(target),)], target
    if logits.ndim == 2 and names and logits.shape[1] == len(names):
        word, tag = target if isinstance(target, tuple) else (target, None)
        if not isinstance(word, int) or not 0 <= word < len(words):
            raise ValueError(
                "target of a tagger must be (word, tag), the word by an index below "
                f"{len(words)}, got {target!r}."
            )
        if not words[word].tokens:
            raise ValueError(f"Word {word}, {words[word].text!r}, has no token and no tag.")
        place = words[word].tokens[0]
        tag = names[int(logits[place].argmax())] if tag is None else tag
        if tag not in names:
            raise ValueError(unknown("tag", tag, names))
        return [(place, names.index(tag))], f"{words[word].text}: {tag}"
    raise ValueError(_OTHER_TASK.format(type(task).__name__))


def _best_span(task: Any, words: list[Word], logits: np.ndarray) -> list[tuple[int, ...]]:
    """Finds the first and the last token of the best answer by logits (length, 2)."""
    context = task.fields.required[-1]
    tokens = [token for word in words if word.feature == context for token in word.tokens]
    if not tokens:
        raise ValueError("The context must have words, to explain an answer, got none.")
    scores = {
        (first, last): logits[first, 0] + logits[last, 1]
        for i, first in enumerate(tokens)
        for last in tokens[i : i + task.max_answer]
    }
    first, last = max(scores, key=scores.__getitem__)
    return [(first, 0), (last, 1)]
