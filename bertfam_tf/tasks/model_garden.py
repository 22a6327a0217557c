"""Backbones as live encoders of TF Model Garden."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf import model_garden, registry
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.checkpoints.fill import stored as stored_layout
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.registry import FormatNames
from bertfam_tf.sources import UnrepresentableError
from bertfam_tf.tasks.keras_hub import check_config

_INSTALL = "pip install 'bertfam_tf[garden]'"
# Names in ``params.yaml`` -> the names of constructors' arguments.
_ARGUMENTS = {
    "hidden_activation": "activation",
    "max_position_embeddings": "max_sequence_length",
    "initializer_range": "initializer",
}


def to_model_garden(backbone: Backbone) -> Any:
    """Returns TF Model Garden's encoder with the same weights.

    It needs ``tf-models-official``, which uses Keras 2 (``tf_keras``) next to Keras 3. Encoders go
    back with ``load_backbone(encoder)``.

    Args:
        backbone: a BERT or ALBERT.

    Returns:
        An encoder of ``official.nlp.modeling.networks``: ``BertEncoderV2`` or ``AlbertEncoder``,
        whose outputs are a dict with ``sequence_output`` and ``pooled_output``.

    Raises:
        ImportError: if Model Garden is not installed.
        UnrepresentableError: for a family or config that Model Garden does not have.
    """
    record = registry.get(backbone.family)
    names = record.formats.get(model_garden.FORMAT)
    if names is None:
        raise UnrepresentableError(f"Model Garden has no encoder for the family {record.name}.")
    theirs = _encoder(backbone, names)
    with TemporaryDirectory() as folder:
        model_garden.write(theirs, Path(folder))
        checkpoint = Checkpoint(folder, record.name)
        check_config(backbone, checkpoint.config, f"Model Garden's {type(theirs).__name__}")
        weights, values = plain_weights(backbone), {}
        for path, source in checkpoint.variable_sources("").items():
            name, _, transform = source.partition("|")
            if path in weights:
                values[name] = stored_layout(weights[path], transform)
        _restore(theirs, Path(folder), checkpoint, values)
    return theirs


def _encoder(backbone: Backbone, names: FormatNames) -> Any:
    try:
        import tf_keras
        from official.modeling import activations
        from official.nlp.modeling import networks
    except ImportError as error:
        raise ImportError(f"Model Garden's encoders need {_INSTALL}: {error}") from error
    config = backbone.config.to_dict()
    options: dict[str, Any] = {}
    written: set[str] = set()  # several keys may stand for one field
    for key, fields in names.config.items():
        if fields[0] in config and not written.intersection(fields):
            options[_ARGUMENTS.get(key, key)] = config[fields[0]]
            written.update(fields)
    kinds = {model_garden.kind_of(name): name for name in dir(networks)}
    cls = getattr(networks, kinds[model_garden.kind_of(names.kinds[-1])])
    functions = {"gelu": tf_keras.activations.gelu, names.gelu: activations.gelu}
    name = options["activation"]
    options["activation"] = functions.get(name, name)
    options["initializer"] = tf_keras.initializers.TruncatedNormal(stddev=options["initializer"])
    return cls(**options, dict_outputs=True)


def _restore(
    encoder: Any, directory: Path, checkpoint: Checkpoint, values: Mapping[str, np.ndarray]
) -> None:
    """Restores an encoder from its own checkpoint with other values.

    Args:
        encoder: the encoder.
        directory: has its checkpoint.
        checkpoint: the same, opened.
        values: the new values by the names in the family's table.
    """
    written, changed = str(directory / model_garden.WEIGHTS), str(directory / "changed.ckpt")
    reader = tf.train.load_checkpoint(written)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    for name, value in values.items():
        key = checkpoint.stored_name(name)
        tensors[key] = value.reshape(tensors[key].shape).astype(tensors[key].dtype)
    keys = list(tensors)
    tf.raw_ops.SaveV2(
        prefix=changed,
        tensor_names=keys,
        shape_and_slices=[""] * len(keys),
        tensors=[tensors[key] for key in keys],
    )
    tf.train.Checkpoint(encoder=encoder).read(changed).assert_consumed()
