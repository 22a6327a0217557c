"""Students that begin with the weights of their teacher."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from bertfam_tf import registry
from bertfam_tf.distill.layer_maps import LayerMap, layer_map
from bertfam_tf.models import Backbone, config_of
from bertfam_tf.tasks import Task
from bertfam_tf.training.tuning import blocks_of

_OF_LAYERS = ("num_layers", "heads_per_layer")


def student_of(
    teacher: Task | Backbone,
    num_layers: int | None = None,
    *,
    family: str | None = None,
    size: str | None = None,
    layers: LayerMap | None = "every_other",
    **fields: Any,
) -> Any:
    """A smaller model, which begins with weights of the teacher.

    Args:
        teacher: a task, for a student that is the same task with the same tokenizer; or a backbone.
        num_layers: number of layers; None for that of ``size``, or else the teacher's.
        family: the student's; None for the teacher's.
        size: of the family, whose config fields the student has; None for those that the teacher's
            config has too.
        layers: which of the teacher's layers the student's are copies of, as ``layer_map`` takes
            it; None for random weights.
        **fields: further config fields.

    Returns:
        As ``teacher``; of a task the head is copied where it has the same shapes.

    Raises:
        ValueError: for an unknown family, size, field or layer map.
    """
    backbone = teacher if isinstance(teacher, Backbone) else teacher.backbone
    family = family or backbone.family
    kind = registry.get(family).config
    known = {field.name for field in dataclasses.fields(kind)} - {*_OF_LAYERS}
    shared = {n: v for n, v in backbone.config.to_dict().items() if n in known}
    if size is not None:
        config = config_of(family, size).to_dict()
        config["vocab_size"] = shared["vocab_size"]
    else:
        config = {**shared, "num_layers": backbone.config.num_layers}
    config |= {**fields, **({} if num_layers is None else {"num_layers": num_layers})}
    made = Backbone(family, config, dtype=backbone.dtype_policy)
    student = teacher.with_backbone(made) if isinstance(teacher, Task) else made
    if layers is not None:
        warm_start(student, teacher, layers)
    return student


def warm_start(
    student: Task | Backbone, teacher: Task | Backbone, layers: LayerMap = "every_other"
) -> list[str]:
    """Copies weights of the teacher to the student, where both have them.

    Blocks are copied as the layer map says, other layers to those of the same name: the embeddings,
    poolers and heads. Where the student is narrower, its embeddings are the teacher's projected on
    their principal directions, one projection for all tables; what else has other shapes remains
    as it is.

    Args:
        layers: as ``layer_map`` takes it.

    Returns:
        paths of the student's weights that were assigned.

    Raises:
        ValueError: for a layer map that does not fit, or if no weight was assigned.
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
    blocks = {id(each) for each in (*new, *old)}
    others = {name: part for name, part in theirs.parts.items() if id(part) not in blocks}
    pairs = [
        (part, others[name])
        for name, part in ours.parts.items()
        if id(part) not in blocks and name in others
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
    same = [(w.name, tuple(w.shape)) for w in to.weights] == [
        (w.name, tuple(w.shape)) for w in source.weights
    ]
    if not same:
        return []
    for ours, theirs in zip(to.weights, source.weights, strict=True):
        ours.assign(theirs)
    return [weight.path for weight in to.weights]


def _copy_shared(to: keras.layers.Layer, source: keras.layers.Layer) -> list[str]:
    """Copies the weights that two blocks both have: a first block may lack a norm that others have.

    Returns:
        their paths in ``to``; none if one of them has another shape.
    """
    found = {weight.path.removeprefix(source.path): weight for weight in source.weights}
    paths = {weight.path.removeprefix(to.path): weight for weight in to.weights}
    shared = [(weight, found[path]) for path, weight in paths.items() if path in found]
    if any(ours.shape != theirs.shape for ours, theirs in shared):
        return []
    for ours, theirs in shared:
        ours.assign(theirs)
    return [ours.path for ours, _ in shared]


def _is_table(layer: keras.layers.Layer) -> bool:
    return len(getattr(getattr(layer, "embeddings", None), "shape", ())) == 2


def _project_tables(pairs: list[tuple[Any, Any]]) -> list[str]:
    """Fills narrower embeddings with projections of wider ones.

    The sum of several tables is projected as the sum of the projections, so that all need the same
    directions: those in which the largest table's rows vary most.
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
    # Eigenvectors of the second moments, from the largest eigenvalue on.
    _, vectors = np.linalg.eigh(rows.T @ rows)
    for to, source in pairs:
        width = to.embeddings.shape[1]
        found = keras.ops.convert_to_numpy(source.embeddings) @ vectors[:, ::-1][:, :width]
        to.embeddings.assign(found)
    return [to.embeddings.path for to, _ in pairs]
