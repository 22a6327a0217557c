"""Models as live objects of KerasHub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np

from bertfam_tf import registry
from bertfam_tf.checkpoints import Checkpoint, keras_hub
from bertfam_tf.checkpoints.fill import stored as stored_layout
from bertfam_tf.checkpoints.hub_presets import FORMAT
from bertfam_tf.checkpoints.keras_hub_head import WEIGHTS as TASK_WEIGHTS
from bertfam_tf.checkpoints.keras_weights import stored, table_name
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.registry import Family, FormatNames
from bertfam_tf.sources import UnrepresentableError
from bertfam_tf.tasks.task import Task
from bertfam_tf.text import Tokenizer

# Config fields that do not affect the outputs of a backbone.
_NOT_COMPUTED = ("dropout", "initializer_range")
_PADDING = "pad_id"
_HEAD_FIELDS = "lm_"
_SEGMENTS, _POSITIONS = "segment_embedding/embeddings", "position_embedding/embeddings"


def to_keras_hub(model: Backbone | Task) -> Any:
    """Returns KerasHub's model with the same weights.

    ``save_to_preset`` of the result writes a preset, which ``from_preset`` of KerasHub and
    ``from_pretrained`` of this package read.

    Args:
        model: a backbone; or a task with KerasHub's kind of head, whose tokenizer and
            ``max_length`` become the preprocessor's.

    Returns:
        A ``keras_hub.models.Backbone`` such as ``BertBackbone``, or a ``keras_hub.models.Task``
        such as ``BertTextClassifier``.

    Raises:
        UnrepresentableError: for a family, head or config that KerasHub does not have. Its BERT,
            ALBERT and ELECTRA compute an approximation of GELU, ``activation="gelu_new"``.
    """
    task = model if isinstance(model, Task) else None
    backbone: Any = model if task is None else task.backbone
    record = registry.get(backbone.family)
    names = record.formats.get(FORMAT)
    if names is None:
        raise UnrepresentableError(f"KerasHub has no class for the family {record.name}.")
    suffix = "" if task is None else _suffix(task, names)
    theirs = _backbone(backbone, names)
    if task is not None:
        tokenizer = _tokenizer(task.tokenizer, record, names)
        theirs = _with_head(task, theirs, names.kinds[0] + suffix, tokenizer)
    with TemporaryDirectory() as folder:
        theirs.save_to_preset(folder)
        checkpoint = Checkpoint(folder, record.name)
        check_config(
            backbone,
            checkpoint.config,
            f"KerasHub's {names.kinds[0]}",
            with_head=task is not None,
            with_padding=names.offset > 0,
        )
        files = {"": Path(folder) / keras_hub.WEIGHTS, "task/": Path(folder) / TASK_WEIGHTS}
        sources = dict(checkpoint.variable_sources(""))
        weights = plain_weights(backbone)
        if task is not None and task.head is not None and task.head.weights:
            sources |= checkpoint.variable_sources(task.head.kind)
            weights |= plain_weights(task.head)
        _write_weights(files, weights, sources, record, names, backbone.config)
        (theirs if task is None else theirs.backbone).load_weights(files[""])
        if files["task/"].is_file():
            theirs.load_task_weights(files["task/"])
    return theirs


def _suffix(task: Task, names: FormatNames) -> str:
    """Returns the end, after the family, of the name of KerasHub's class for the task."""
    kind = None if task.head is None else task.head.kind
    for suffix, described in names.tasks.items():
        if kind is not None and described.head == kind:
            return suffix
    known = ", ".join(sorted({entry.head for entry in names.tasks.values() if entry.head}))
    raise UnrepresentableError(
        f"KerasHub has no {names.kinds[0]} model for a {type(task).__name__}, whose head is "
        f"{kind}; it has heads for: {known or 'none'}."
    )


def _backbone(backbone: Backbone, names: FormatNames) -> Any:
    import keras_hub as library

    config = backbone.config.to_dict()
    options = {
        key: config[fields[0]] for key, fields in names.config.items() if fields[0] in config
    }
    cls = getattr(library.models, f"{names.kinds[0]}Backbone")
    # Several keys may stand for one field, of which a class has one.
    known = cls.__init__.__code__.co_varnames[: cls.__init__.__code__.co_argcount]
    options = {key: value for key, value in options.items() if key in known}
    return cls(**options, dtype=backbone.dtype_policy)


def _with_head(task: Task, backbone: Any, name: str, tokenizer: Any) -> Any:
    import keras_hub as library

    cls = getattr(library.models, name)
    preprocessor = getattr(library.models, f"{name}Preprocessor")(
        tokenizer, sequence_length=task.max_length
    )
    options = {"num_classes": len(task.class_names)} if task.class_names else {}
    return cls(backbone, preprocessor=preprocessor, **options)


def _tokenizer(tokenizer: Tokenizer, record: Family, names: FormatNames) -> Any:
    import keras_hub as library

    cls = getattr(library.models, f"{names.kinds[0]}Tokenizer")
    with TemporaryDirectory() as folder:
        written = Path(folder)
        tokenizer.save(written)
        for theirs, ours in names.tokenizer.items():
            if not (written / ours).is_file():
                raise UnrepresentableError(
                    f"KerasHub's {cls.__name__} reads {ours}, which a "
                    f"{type(tokenizer).__name__} does not have."
                )
            (written / ours).rename(written / theirs)
        options = {}
        config = tokenizer.get_config()
        if "lower_case" in config and record.tokenizer.kind == "wordpiece":
            options["lowercase"] = bool(config["lower_case"])
        loaded = cls(**options)
        loaded.load_assets(folder)
    return loaded


def check_config(
    ours: Backbone,
    theirs: Any,
    what: str,
    with_head: bool = False,
    with_padding: bool = False,
) -> None:
    """Raises UnrepresentableError if another library's model computes something else.

    Args:
        ours: the backbone.
        theirs: the config of the other model, read as one of the same family.
        what: the other model, for the message.
        with_head: whether fields of heads matter.
        with_padding: whether the id of padding matters, from which positions are counted.
    """
    mine, other = ours.config.to_dict(), theirs.to_dict()
    different = [
        f"{key} = {mine[key]!r} (only {other[key]!r})"
        for key in mine
        if mine[key] != other[key]
        and not key.endswith(_NOT_COMPUTED)
        and (with_padding or key != _PADDING)
        and (with_head or not key.startswith(_HEAD_FIELDS))
    ]
    if different:
        raise UnrepresentableError(f"{what} cannot have {', '.join(different)}.")


def _write_weights(
    files: Mapping[str, Path],
    weights: Mapping[str, np.ndarray],
    sources: Mapping[str, str],
    record: Family,
    names: FormatNames,
    config: Any,
) -> None:
    """Writes weights into files of KerasHub's weights, which have all tensors already.

    Args:
        files: a file for each prefix of tensor names; those that do not exist are left out.
        weights: arrays by the paths of their variables.
        sources: variable path -> tensor name and storage transform.
        record, names, config: the family, its names in the format and the model's config.
    """
    repeats = getattr(config, "layers_per_group", None)
    places: dict[str, tuple[Path, str]] = {}
    for prefix, file in files.items():
        if file.is_file():
            for name, _ in stored(file):
                places[prefix + table_name(name, None if prefix else repeats)] = (file, name)
    values: dict[tuple[Path, str], np.ndarray] = {}
    for path, value in weights.items():
        name, _, transform = sources[path].partition("|")
        if path == _POSITIONS and names.offset:
            value = value[names.offset :]
        if path == _POSITIONS and _SEGMENTS in names.absent:
            # Every token has the one segment, so its vector may be added to the positions'.
            value = value + weights[_SEGMENTS]
        if name in places:
            values[places[name]] = stored_layout(value, transform)
        elif path in names.absent:
            continue
        else:
            for layer, part in _parts(name, value, names):
                values[places[layer]] = part
    for file in {file for file, _ in places.values()}:
        with h5py.File(file, "r+") as opened:
            for (owner, name), value in values.items():
                if owner == file:
                    opened[name][...] = value.reshape(opened[name].shape)


def _parts(name: str, value: np.ndarray, names: FormatNames) -> list[tuple[str, np.ndarray]]:
    """The tensors of several layers of KerasHub that are one of ours."""
    for whole, layers in names.joined.items():
        if f"/{whole}/" in name:
            parts = np.split(value, len(layers), axis=-1)
            named = (name.replace(f"/{whole}/", f"/{layer}/") for layer in layers)
            return list(zip(named, parts, strict=True))
    raise UnrepresentableError(f"KerasHub's {names.kinds[0]} has no {name}.")
