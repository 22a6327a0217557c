"""Students that start with weights of their teacher."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from bertfam_tf import registry
from bertfam_tf.distill.layer_maps import LayerMap, layer_map
from bertfam_tf.models import Backbone, config_of
from bertfam_tf.models.base import plain_weights
from bertfam_tf.tasks import Task
from bertfam_tf.training.tuning import blocks_of

_LAYER_FIELDS = ("num_layers", "heads_per_layer")


def student_of(
    teacher: Task | Backbone,
    num_layers: int | None = None,
    *,
    family: str | None = None,
    size: str | None = None,
    layers: LayerMap | None = "every_other",
    **fields: Any,
) -> Any:
    """Creates a smaller model that starts with weights of the teacher.

    Args:
        teacher: a task, for a student with the same task and tokenizer; or a backbone.
        num_layers: the number of layers; None for the number of ``size``, or else the teacher's.
        family: the student's family; None for the teacher's.
        size: a size of the family that sets the student's config; None copies the config fields
            that the families have in common from the teacher.
        layers: the teacher's layers that the student's are copied from; see ``layer_map``. None
            for random weights.
        **fields: further config fields.

    Returns:
        A model of the same kind as ``teacher``. A task's head is copied if the shapes are equal.

    Raises:
        ValueError: if the family, size, a field or the layer map is unknown.
    """
    backbone = teacher if isinstance(teacher, Backbone) else teacher.backbone
    family = family or backbone.family
    kind = registry.get(family).config
    known = {field.name for field in dataclasses.fields(kind)} - {*_LAYER_FIELDS}
    shared = {n: v for n, v in backbone.config.to_dict().items() if n in known}
    if size is not None:
        config = config_of(family, size).to_dict()
        config["vocab_size"] = shared["vocab_size"]
    else:
        config = {**shared, "num_layers": backbone.config.num_layers}
    config |= {**fields, **({} if num_layers is None else {"num_layers": num_layers})}
    student: Any = Backbone(family, config, dtype=backbone.dtype_policy)
    if isinstance(teacher, Task):
        student = teacher.with_backbone(student)
    if layers is not None:
        warm_start(student, teacher, layers)
    return student


def warm_start(
    student: Task | Backbone, teacher: Task | Backbone, layers: LayerMap = "every_other"
) -> list[str]:
    """Copies weights of the teacher to the student.

    Blocks are copied by the layer map, embeddings, poolers and heads by name. Layers with other
    shapes keep their weights, except narrower embeddings, which are set to the teacher's projected
    on their principal components, with one projection for all tables.

    Args:
        student: the model to change.
        teacher: the model to copy from.
        layers: the map from the student's layers to the teacher's; see ``layer_map``.

    Returns:
        The paths of the student's weights that were assigned.

    Raises:
        ValueError: if the layer map does not fit, or no weight was assigned.
    """
    ours, theirs = (x if isinstance(x, Backbone) else x.backbone for x in (student, teacher))
    new, old = blocks_of(ours), blocks_of(theirs)
    copy_block = _copy_shared if ours.family == theirs.family else _copy
    assigned = [
        path
        for i, j in layer_map(layers, len(new), len(old)).items()
        if i and j
        for path in copy_block(new[i - 1], old[j - 1])
    ]
    blocks = {id(block) for block in (*new, *old)}
    others = {name: layer for name, layer in theirs.parts.items() if id(layer) not in blocks}
    pairs = [
        (layer, others[name])
        for name, layer in ours.parts.items()
        if id(layer) not in blocks and name in others
    ]
    heads = [model.head for model in (student, teacher) if isinstance(model, Task)]
    if len(heads) == 2 and None not in heads:
        pairs.append((heads[0], heads[1]))
    assigned += [path for to, source in pairs for path in _copy(to, source)]
    assigned += _project_tables([pair for pair in pairs if _is_table(pair[0])])
    if not assigned:
        raise ValueError(
            f"No weight of the {theirs.family} teacher has the shape of one of the {ours.family} "
            "student's: expected a student of the same width, or narrower embeddings."
        )
    return assigned


def _copy(to: keras.layers.Layer, source: keras.layers.Layer) -> list[str]:
    """Copies all weights of a layer, or none; returns their paths."""
    values = plain_weights(source)
    source_weights = [w for w in source.weights if w.path in values]
    same = [(w.name, tuple(w.shape)) for w in to.weights] == [
        (w.name, tuple(w.shape)) for w in source_weights
    ]
    if not same:
        return []
    for ours, theirs in zip(to.weights, source_weights, strict=True):
        ours.assign(values[theirs.path])
    return [weight.path for weight in to.weights]


def _copy_shared(to: keras.layers.Layer, source: keras.layers.Layer) -> list[str]:
    """Copies the weights that both blocks have: a first block may lack a norm that others have.

    Returns:
        Their paths in ``to``; none if the shapes of one of them differ.
    """
    values = plain_weights(source)
    source_weights = {path.removeprefix(source.path): x for path, x in values.items()}
    shared = [
        (weight, source_weights[path])
        for weight in to.weights
        if (path := weight.path.removeprefix(to.path)) in source_weights
    ]
    if any(ours.shape != theirs.shape for ours, theirs in shared):
        return []
    for ours, theirs in shared:
        ours.assign(theirs)
    return [ours.path for ours, _ in shared]


def _is_table(layer: keras.layers.Layer) -> bool:
    return len(getattr(getattr(layer, "embeddings", None), "shape", ())) == 2


def _project_tables(pairs: list[tuple[Any, Any]]) -> list[str]:
    """Sets narrower embeddings to projections of wider ones.

    Embeddings of several tables are added, so all tables are projected on the same directions: the
    principal components of the largest table.
    """
    pairs = [
        (to, source)
        for to, source in pairs
        if to.embeddings.shape[0] == source.embeddings.shape[0]
        and to.embeddings.shape[1] < source.embeddings.shape[1]
    ]
    if not pairs:
        return []
    _, largest = max(pairs, key=lambda pair: pair[1].embeddings.shape[0])
    rows = keras.ops.convert_to_numpy(largest.embeddings).astype(np.float64)
    _, vectors = np.linalg.eigh(rows.T @ rows)  # in ascending order of eigenvalues
    for to, source in pairs:
        directions = vectors[:, ::-1][:, : to.embeddings.shape[1]]
        to.embeddings.assign(keras.ops.convert_to_numpy(source.embeddings) @ directions)
    return [to.embeddings.path for to, _ in pairs]
