"""Live encoders of TF Model Garden, written as the checkpoints that its trainers write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertfam_tf import registry
from bertfam_tf.names import unknown

FORMAT, PARAMS, WEIGHTS = "model_garden", "params.yaml", "bert_model.ckpt"
# The name in ``params.yaml`` of the GELU that is not approximated, which Model Garden has no name
# for: its "gelu" is the approximation.
EXACT_GELU = "gelu_exact"
_PACKAGE = "official.nlp."
# Names of constructors' arguments -> the names in ``params.yaml``.
_KEYS = {
    "inner_dim": "intermediate_size",
    "output_dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "max_sequence_length": "max_position_embeddings",
}
# Not the names of arguments of ``params.yaml``, or not a number.
_OTHER = ("activation", "inner_activation", "initializer", "embedding_layer")


def is_model(source: Any) -> bool:
    """Returns whether an object is a model of Model Garden."""
    return any(cls.__module__.startswith(_PACKAGE) for cls in type(source).__mro__)


def kind_of(name: str) -> str:
    """Returns the name without ``Encoder``, for comparisons of classes and types of encoders."""
    return name.replace("Encoder", "").replace("_", "").lower()


def write(encoder: Any, directory: Path) -> None:
    """Writes an encoder as ``params.yaml`` and a checkpoint.

    Args:
        encoder: an encoder of ``official.nlp.modeling.networks``.
        directory: the directory, which exists.

    Raises:
        ValueError: if it is no encoder of a known type, or its activation is unknown.
    """
    import tensorflow as tf
    import yaml

    name = type(encoder).__name__
    kinds = {kind_of(kind): kind for kind in registry.of_format(FORMAT)}
    if kind_of(name) not in kinds:
        problem = unknown("encoder of Model Garden", name, sorted(kinds.values()))
        raise ValueError(f"{problem} An encoder in a model is model.checkpoint_items['encoder'].")
    if not encoder.weights:  # a layer that was not called yet
        names = ("input_word_ids", "input_mask", "input_type_ids")
        encoder({name: tf.zeros((1, 1), tf.int32) for name in names})
    config = encoder.get_config()
    options = {_KEYS.get(key, key): config[key] for key in config if key not in _OTHER}
    options["hidden_activation"] = _activation(encoder)
    initializer = config.get("initializer")
    if isinstance(initializer, dict) and "stddev" in initializer.get("config", {}):
        options["initializer_range"] = initializer["config"]["stddev"]
    kind = kinds[kind_of(name)]
    params = {"task": {"model": {"encoder": {"type": kind, kind: options}}}}
    (directory / PARAMS).write_text(yaml.safe_dump(params), "utf-8")
    tf.train.Checkpoint(encoder=encoder).write(str(directory / WEIGHTS))


def _activation(encoder: Any) -> str:
    """The name in ``params.yaml`` of the activation, which may be a function without a name."""
    import tensorflow as tf

    known = {
        "gelu": lambda x: tf.nn.gelu(x, approximate=True),
        EXACT_GELU: tf.nn.gelu,
        "relu": tf.nn.relu,
        "silu": tf.nn.silu,
        "tanh": tf.math.tanh,
    }
    layers = (getattr(x, "_intermediate_activation_layer", None) for x in encoder.submodules)
    function = next(layer for layer in layers if layer is not None)
    x = tf.linspace(-4.0, 4.0, 81)
    for name, candidate in known.items():
        if float(tf.reduce_max(tf.abs(function(x) - candidate(x)))) < 1e-5:
            return name
    raise ValueError(f"The activation of the encoder must be one of {', '.join(known)}.")
