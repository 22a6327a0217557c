"""Maps from a student's layers to the teacher's layers that they imitate or copy.

Layers are numbered as in ``hidden_states``: 0 is the embeddings' output, 1 the first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bertfam_tf.names import unknown

LayerMap = str | Sequence[int] | Mapping[int, int]


def _uniform(student: int, teacher: int) -> dict[int, int]:
    return {i: max(1, round(i * teacher / student)) for i in range(1, student + 1)}


def _every_other(student: int, teacher: int) -> dict[int, int]:
    step = (teacher - 1) / max(student - 1, 1)
    return {i + 1: round(i * step) + 1 for i in range(student)}


def _top(student: int, teacher: int) -> dict[int, int]:
    return {i: teacher - student + i for i in range(1, student + 1)}


def _without_last(layers: Callable[[int, int], dict[int, int]]) -> Callable:
    return lambda student, teacher: {
        i: j for i, j in layers(student, teacher).items() if i < student
    }


MAPS: dict[str, Callable[[int, int], dict[int, int]]] = {
    "uniform": _uniform,
    "every_other": _every_other,
    "top": _top,
    "bottom": lambda student, teacher: {i: i for i in range(1, student + 1)},
    "last": lambda student, teacher: {student: teacher},
    "skip": _without_last(_uniform),
    "pkd_last": _without_last(_top),
}


def layer_map(layers: LayerMap, student: int, teacher: int) -> dict[int, int]:
    """Returns a map from the student's layers to the teacher's.

    Args:
        layers: a list of the teacher's layers, one for each of the student's; or a dict from the
            student's to the teacher's; or a name. With S layers in the student and T in the
            teacher:

            * ``"uniform"``: i · T / S, rounded (TinyBERT, arXiv 1909.10351);
            * ``"every_other"``: evenly spaced from the first to the last (DistilBERT's initial
              layers, arXiv 1910.01108);
            * ``"top"``, ``"bottom"``: the last or the first S;
            * ``"last"``: only the last layer (MiniLM, arXiv 2002.10957);
            * ``"skip"``, ``"pkd_last"``: as ``"uniform"`` and ``"top"``, without the last layer
              (Patient Knowledge Distillation, arXiv 1908.09355).
        student, teacher: the numbers of layers.

    Raises:
        ValueError: if the name is unknown, or one of the models lacks a layer.
    """
    if isinstance(layers, str):
        if layers not in MAPS:
            raise ValueError(unknown("layer map", layers, MAPS))
        if student > teacher and layers in ("top", "bottom", "pkd_last"):
            raise ValueError(
                f"The layer map {layers!r} needs at least as many layers in the teacher as in the "
                f"student, got {teacher} and {student}."
            )
        return MAPS[layers](student, teacher)
    if not hasattr(layers, "__iter__"):
        raise ValueError(f"A layer map is a name, a list or a mapping of layers, got {layers!r}.")
    pairs = dict(layers) if isinstance(layers, Mapping) else dict(enumerate(layers, 1))
    for kind, numbers, count in (("student", pairs, student), ("teacher", pairs.values(), teacher)):
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number <= count:
                raise ValueError(
                    f"A layer map names layer {number!r} of the {kind}, which has the layers 1 to "
                    f"{count}, and 0 for the embeddings."
                )
    return pairs
