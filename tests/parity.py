"""Compares a backbone with the reference implementation's results for the same weights."""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads, registry
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.checkpoints.fill import oriented

# Families with a reference implementation: those that have published sizes, in a known format.
FAMILIES = [
    name
    for name in bf.families()
    if registry.get(name).sizes.keys() > {"tiny"}
    and (registry.get(name).huggingface or registry.get(name).formats)
]
# Both compute in float64, where rounding errors are about 1e-8.
TOLERANCE = 1e-6
# Rounding errors of this size occur in float32 with perturbed networks: the reference's own tiny
# ALBERT differs by 1.1e-4 from its result in float64.
FLOAT32_TOLERANCE = 2e-4
# Outputs other than the hidden states, and their factors in the loss.
DIRECTIONS = {
    name: f"{name.split('_')[0]}_direction"
    for name in ("pooled_output", "query_output", "sequence_output")
}


def relative(ours, theirs, floor: float = 0.0) -> float:
    """Largest difference, relative to the largest reference value (at least ``floor``)."""
    ours, theirs = np.asarray(ours, "float64"), np.asarray(theirs, "float64")
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), floor, 1e-30))


def output_differences(backbone: keras.Model, expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Relative difference of each output; arguments as for ``differences``."""
    return _compare_outputs(*_outputs_of_interest(backbone, expected), expected)


def differences(backbone: keras.Model, expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Relative difference of each output and each weight's gradient.

    Args:
        backbone: a backbone with the reference's weights.
        expected: inputs, outputs, directions and gradients, from ``tests.support.reference``.
    """
    with tf.GradientTape() as tape:
        hidden, others, memory = _outputs_of_interest(backbone, expected)
        loss = tf.reduce_sum(hidden * _like(hidden, expected["hidden_direction"]))
        for name, other in others.items():
            loss += tf.reduce_sum(other * _like(other, expected[DIRECTIONS[name]]))
    variables = backbone.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    result = _compare_outputs(hidden, others, memory, expected)
    largest = max(np.abs(v).max() for k, v in expected.items() if k.startswith("gradient/"))
    sources = _sources(backbone)
    for variable, gradient in zip(variables, gradients, strict=True):
        name, _, transform = sources[variable.path].partition("|")
        theirs = expected.get(f"gradient/{name}")
        if gradient is None or theirs is None:
            result[f"gradient of {variable.path}"] = 0.0 if gradient is theirs else np.inf
            continue
        # The bias of keys does not affect the softmax: its gradient is rounding noise around
        # zero, hence the floor.
        result[f"gradient of {variable.path}"] = relative(
            tf.convert_to_tensor(gradient),
            oriented(theirs, transform, variable.shape),
            0.1 * largest,
        )
    return result


def _outputs_of_interest(
    backbone: keras.Model, expected: dict[str, np.ndarray]
) -> tuple[tf.Tensor, dict[str, tf.Tensor], list[tf.Tensor]]:
    """Hidden states (layers + 1, batch, length, hidden), the others of ``DIRECTIONS``, memory."""
    outputs = _outputs(backbone, expected)
    hidden = tf.concat([tf.stack(each["hidden_states"]) for each in outputs], 2)
    others = {
        name: tf.concat([each[name] for each in outputs], 1)
        for name in DIRECTIONS
        if name in expected
    }
    return hidden, others, outputs[-1]["memory"] if "new_memory" in expected else []


def _compare_outputs(hidden, others, memory, expected) -> dict[str, float]:
    real = np.asarray(expected["padding_mask"])[None, :, :, None]  # (1, batch, length, 1)
    result = {
        f"hidden_states[{i}]": relative(np.asarray(hidden[i]) * real[0], theirs * real[0])
        for i, theirs in enumerate(expected["hidden_states"])
    }
    result |= {name: relative(other, expected[name]) for name, other in others.items()}
    for i, (a, b) in enumerate(zip(memory, expected.get("new_memory", []), strict=True)):
        result[f"memory[{i}]"] = relative(a, b)
    return result


def weights_of(family: str) -> Mapping[str, str]:
    """The family's table of weights in the reference's checkpoints."""
    record = registry.get(family)
    if record.huggingface is not None:
        return record.huggingface.weights
    (names,) = record.formats.values()
    return {**names.weights, **{path: path for path in names.absent}}


def _sources(backbone: keras.Model) -> dict[str, str]:
    return registry.get(backbone.family).expand(weights_of(backbone.family), backbone.config)


def assert_equal(directory, family: str, *expected: dict[str, np.ndarray]) -> None:
    """Loads a checkpoint as ``family`` and fails with the tensors that differ from the reference's.

    Outputs and gradients are compared in float64.

    Args:
        directory: the checkpoint.
        family: what to load it as.
        expected: one dict for each set of inputs, as for ``differences``.
    """
    backbone = bf.load_backbone(directory, family, dtype="float64")
    largest = 0.0
    for each in expected:
        found = differences(backbone, each)
        wrong = {name: value for name, value in found.items() if not value <= TOLERANCE}
        assert not wrong, f"{len(wrong)} of {len(found)} differ: {wrong}"
        largest = max(largest, *found.values())
    print(f"largest relative difference: {largest:.1e}")


def assert_equal_in_float32(directory, family: str, *expected: dict[str, np.ndarray]) -> None:
    """Loads a checkpoint and fails if outputs in float32 differ; arguments as ``assert_equal``."""
    backbone = bf.load_backbone(directory, family)
    found = [output_differences(backbone, each) for each in expected]
    largest = max(value for differences in found for value in differences.values())
    print(f"largest relative difference in float32: {largest:.1e}")
    assert largest <= FLOAT32_TOLERANCE, found


def head_differences(directory, family: str, head: str, expected: dict) -> dict[str, float]:
    """Relative difference of a head's logits and, if they are expected, of all gradients.

    Computed in float64, as ``differences`` does.

    Args:
        directory: the checkpoint with the head.
        family, head: names of the family and the head.
        expected: inputs and logits, from ``tests.support.reference``.
    """
    backbone, layer = load_head(directory, family, head, dtype="float64")
    theirs = expected["logits"]
    with tf.GradientTape(watch_accessed_variables="direction" in expected) as tape:
        found = [layer(each, training=False) for each in _outputs(backbone, expected)]
        logits = tf.concat(found, 1) if len(found) > 1 else found[0]
        loss = tf.reduce_sum(logits * _like(logits, expected.get("direction", theirs)))
    real = np.asarray(expected["padding_mask"])
    real = (
        real.reshape(real.shape + (1,) * (theirs.ndim - 2))
        if layer.reads == "sequence_output"
        else 1
    )
    result = {"logits": relative(np.asarray(logits) * real, theirs * real)}
    if "direction" not in expected:
        return result
    record = registry.get(family)
    names = {path: record.huggingface.prefix + name for path, name in _sources(backbone).items()}
    names |= record.expand(record.heads[head].weights(head), backbone.config)
    # Tied weights have either name.
    also, decoder = {}, record.heads[head].tied_output
    if decoder:
        also = {names["token_embedding/embeddings"]: f"{decoder.theirs}.weight"}
        if decoder.bias:
            also |= {decoder.bias: f"{decoder.theirs}.bias"}
    variables = backbone.trainable_variables + layer.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    largest = max(np.abs(v).max() for k, v in expected.items() if k.startswith("gradient/"))
    for variable, gradient in zip(variables, gradients, strict=True):
        name, _, transform = names[variable.path].partition("|")
        theirs = expected.get(f"gradient/{name}", expected.get(f"gradient/{also.get(name)}"))
        if gradient is None or theirs is None:
            result[f"gradient of {variable.path}"] = 0.0 if gradient is theirs else np.inf
            continue
        gradient = tf.convert_to_tensor(gradient)
        theirs = oriented(theirs, transform, variable.shape)
        result[f"gradient of {variable.path}"] = relative(gradient, theirs, 0.1 * largest)
    return result


def load_head(
    directory, family: str, head: str, dtype: str | None = None
) -> tuple[keras.Model, keras.layers.Layer]:
    """Loads a checkpoint's backbone and head."""
    checkpoint = Checkpoint(directory, family)
    backbone = checkpoint.backbone(dtype=dtype)
    labels = checkpoint.head_labels(head) if registry.get(family).heads[head].has_labels else None
    layer = heads.build(backbone, head, labels and len(labels))
    checkpoint.fill_head(layer, head)
    return backbone, layer


def _outputs(backbone: keras.Model, expected: dict) -> list[dict]:
    """The outputs of each segment, with the memory of previous segments."""
    outputs, memory = [], {}
    for piece in segments(backbone, expected):
        outputs.append(backbone({**piece, **memory}, training=False))
        memory = {name: outputs[-1][name] for name in ("memory",) if name in outputs[-1]}
    return outputs


def segments(backbone: keras.Model, expected: dict) -> list[dict[str, tf.Tensor]]:
    """The inputs of each segment; one segment if ``expected`` has no ``segment_length``."""
    length = expected["token_ids"].shape[1]
    step = int(expected.get("segment_length", length))
    given = {name: expected[name] for name in backbone.input if name in expected}
    pieces = []
    for start in range(0, length, step):
        part = slice(start, start + step)
        piece = {name: tf.constant(value[..., part]) for name, value in given.items()}
        piece["token_ids"] = tf.constant(given["token_ids"][:, part])  # may have characters
        if "perm_mask" in piece:
            piece["perm_mask"] = piece["perm_mask"][:, part]
        pieces.append(piece)
    return pieces


def _like(tensor: tf.Tensor, array: np.ndarray) -> tf.Tensor:
    return tf.cast(array, tensor.dtype)
