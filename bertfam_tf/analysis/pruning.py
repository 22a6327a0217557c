"""Takes heads and hidden units out of a model: fewer weights, less to compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bertfam_tf.analysis.heads import Importance, attentions, checked_heads, feed_forwards
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.tasks import Task
from bertfam_tf.training.layouts import splits
from bertfam_tf.user_warnings import renamed_arguments
from bertfam_tf.validation import in_range

_HEADS, _UNITS = "heads_per_layer", "intermediate_size"


@renamed_arguments(found="importance")
def least_important(importance: Importance, share: float) -> dict[int, list[int]]:
    """Returns the least important heads over all layers; each layer keeps at least one.

    Scores of a layer are divided by their norm, because layers have different scales (Michel et al.
    2019, arXiv 1905.10650, "Head importance score for pruning").

    Args:
        importance: the output of ``importance``.
        share: the proportion of all heads, from 0 to 1.

    Returns:
        indices of heads by index of the layer.

    Raises:
        ValueError: if the proportion is not in this range, or leaves a layer without heads.
    """
    in_range("share", share, at_least=0, below=1)
    scores = [
        scores_of_layer / max(float(np.linalg.norm(scores_of_layer)), 1e-12)
        for scores_of_layer in importance.heads
    ]
    order = sorted((x, i, head) for i, row in enumerate(scores) for head, x in enumerate(row))
    number = round(share * len(order))
    pruned: dict[int, list[int]] = {}
    for _, layer, head in order:
        if sum(map(len, pruned.values())) == number:
            break
        if len(pruned.get(layer, ())) < len(scores[layer]) - 1:
            pruned.setdefault(layer, []).append(head)
    if sum(map(len, pruned.values())) < number:
        raise ValueError(f"share={share} leaves a layer without heads.")
    return {layer: sorted(heads) for layer, heads in sorted(pruned.items())}


@renamed_arguments(found="importance")
def prune(
    model: Any,
    heads: Mapping[int, Iterable[int]] | None = None,
    units: int | None = None,
    *,
    importance: Importance | None = None,
) -> Any:
    """Returns a new model without some heads and hidden units; the old one does not change.

    If only heads are removed, outputs are the same as for ``without_heads`` with ``mode="zero"``.
    The result is an ordinary model, smaller and faster, that can be trained, saved and exported.

    Args:
        model: a task, or a backbone.
        heads: the indices of the heads that are taken out, by index of the layer, from 0.
        units: the number of hidden units that each feed-forward layer keeps, the most important
            ones; None for all.
        importance: the output of ``importance``, for ``units``.

    Returns:
        A model of the type of ``model``.

    Raises:
        ValueError: if the family's layers must have the same number of heads, a layer or head does
            not exist, a layer would have no heads, or ``units`` is without ``importance`` or out of
            range.
    """
    backbone = model if isinstance(model, Backbone) else model.backbone
    config = backbone.config
    known = {field.name for field in dataclasses.fields(config)}
    changed: dict[str, Any] = {}
    kept: dict[str, tuple[int, int, Sequence[int]]] = {}  # by path of the variable
    if heads:
        if _HEADS not in known:
            raise ValueError(f"All layers of {backbone.family} have the same number of heads.")
        counts = []
        layers = attentions(backbone)
        removed = checked_heads(heads, [layer.num_heads for layer in layers])
        for i, layer in enumerate(layers):
            rest = [head for head in range(layer.num_heads) if head not in removed.get(i, ())]
            if not rest:
                raise ValueError(f"Layer {i} must keep one of its {layer.num_heads} heads.")
            counts.append(len(rest))
            _keep(kept, layer, rest)
        changed[_HEADS] = counts
    if units is not None:
        if importance is None:
            raise ValueError(
                "importance must be the output of importance(), to choose hidden units."
            )
        for layer, scores in zip(feed_forwards(backbone), importance.units, strict=True):
            in_range("units", units, at_least=1, at_most=len(scores), integer=True)
            _keep(kept, layer, np.sort(np.argsort(-scores, kind="stable")[:units]).tolist())
        changed[_UNITS] = units
    smaller = Backbone(
        backbone.family, {**config.to_dict(), **changed}, dtype=backbone.dtype_policy
    )
    pruned = model.with_backbone(smaller) if isinstance(model, Task) else smaller
    values = plain_weights(model)
    for variable in pruned.weights:
        value = values[variable.path]
        variable.assign(_part(value, *kept[variable.path]) if variable.path in kept else value)
    return pruned


def _keep(kept: dict, layer: keras.layers.Layer, parts: Sequence[int]) -> None:
    for variable, axis, count in splits(layer):
        kept[variable.path] = (axis, count, parts)


def _part(value: np.ndarray, axis: int, count: int, parts: Sequence[int]) -> np.ndarray:
    """Returns the values of a weight without the parts of its axis that are taken out."""
    values = np.moveaxis(value, axis, 0)
    by_part = values.reshape(count, -1, *values.shape[1:])[list(parts)]
    return np.moveaxis(by_part.reshape(-1, *values.shape[1:]), 0, axis)
