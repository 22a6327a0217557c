"""What families compute on JAX, and how they train, beside TensorFlow and one device.

Outputs and gradients are those of perturbed weights, N(0, 0.3), in float64; steps train one layer
in float32. TensorFlow writes its own to files, and a process without it, on JAX, compares.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

import bertfam_tf as bf
from bertfam_tf import heads, objectives, registry
from bertfam_tf.layers import filled_later
from bertfam_tf.objectives import MaskedTokens, NextTokens
from bertfam_tf.objectives.objective import Supervised
from bertfam_tf.training import layouts, optimizers
from bertfam_tf.training.learner import Learner, mean_loss
from tests.tokens import as_read

DEVICES = 4
# Heads, hidden units and tokens can be shared by four devices.
SIZE = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_heads=4, head_size=4)
STEPS = 3
LOSSES = "MaskedTokens NextTokens PairLabels PermutedTokens ReplacedTokens SpanBoundary".split()
LOSSES += ["BidirectionalTokens", "TranslatedTokens"]
MESHES = {"data": (4, 1), "model": (1, 4), "both": (2, 2)}


def build(
    family: str, dtype: str, scale: float = 0.3, **more: Any
) -> tuple[bf.models.Backbone, dict]:
    """A small backbone without dropout and all of its heads; weights are the same everywhere."""
    config = registry.get(family).config
    sizes = {"num_languages": 2, "cutoffs": (12, 24), **SIZE}
    dropouts = {name: 0.0 for name in config.__dataclass_fields__ if name.endswith("dropout")}
    given = {name: value for name, value in sizes.items() if name in config.__dataclass_fields__}
    with filled_later():
        backbone = bf.build(family, "tiny", dtype=dtype, **given, **dropouts, **more)
        specs = registry.get(family).heads
        found = {
            name: heads.build(backbone, name, 3 if spec.has_labels else None)
            for name, spec in specs.items()
        }
    rng = np.random.default_rng(0)
    for weight in weights_of(backbone, *found.values()):
        weight.assign((weight.name == "gamma") + rng.normal(0, scale, weight.shape))
    return backbone, found


def weights_of(*parts: keras.layers.Layer) -> list[keras.Variable]:
    """All weights of layers, by the layer and the path."""
    return [each for part in parts for each in sorted(part.weights, key=lambda v: v.path)]


def batch(backbone: bf.models.Backbone, rows: int = 8, length: int = 9) -> dict[str, np.ndarray]:
    """Token ids with texts of 2 to 9 tokens."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, length + 1, (rows, 1))
    shape = (rows, length)
    given = {
        "token_ids": rng.integers(1, SIZE["vocab_size"], shape),
        "padding_mask": np.arange(length) < lengths,
        "segment_ids": rng.integers(0, 2, shape),
        "language_ids": rng.integers(0, 2, shape),
        "position_ids": np.arange(length)[None].repeat(rows, 0),
    }
    given["token_ids"] = as_read(backbone, given["token_ids"])
    return {name: given[name].astype("int32") for name in backbone.token_inputs}


def compute(family: str) -> dict[str, np.ndarray]:
    """All outputs of a family, logits of its heads, and the gradients of a sum of all of these."""
    backbone, layers = build(family, "float64")
    weights, inputs = weights_of(backbone, *layers.values()), batch(backbone)

    def values() -> tuple:
        outputs = backbone(inputs)
        found = dict(outputs) | {f"{name} head": head(outputs) for name, head in layers.items()}
        if "causal_lm" in layers:
            tokens = ops.roll(inputs["token_ids"], -1, 1)
            found["log-probabilities"] = layers["causal_lm"](outputs, targets=tokens)
        flat = {"/".join(map(str, path)): x for path, x in keras.tree.flatten_with_path(found)}
        rng = np.random.default_rng(2)
        return sum(ops.sum(x * rng.normal(size=x.shape)) for x in flat.values()), flat

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total, found = values()
        gradients = tape.gradient(total, [weight.value for weight in weights])
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
    else:
        import jax

        def stateless(numbers: list) -> tuple:
            with keras.StatelessScope(zip(weights, numbers, strict=True)):
                return values()

        (_, found), gradients = jax.jit(jax.value_and_grad(stateless, has_aux=True))(
            [weight.value for weight in weights]
        )
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        value = np.zeros(weight.shape) if gradient is None else gradient
        found[f"gradient {i} {weight.path}"] = value
    return {name: np.asarray(x) for name, x in found.items()}


def differences(family: str, expected: dict[str, np.ndarray]) -> tuple[float, float]:
    """The largest differences of outputs and of gradients from those of ``compute``, relative."""
    found = compute(family)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    largest = {"output": 0.0, "gradient": 0.0}
    # The gradient of a key's bias is rounding noise around zero.
    floor = max(np.abs(x).max() for name, x in expected.items() if name.startswith("gradient "))
    for name, theirs in expected.items():
        if not theirs.size:
            continue
        kind = "gradient" if name.startswith("gradient ") else "output"
        scale = max(np.abs(theirs).max(), 0.1 * floor if kind == "gradient" else 0.0)
        assert found[name].shape == theirs.shape, name
        largest[kind] = max(largest[kind], np.abs(found[name] - theirs).max() / scale)
    return largest["output"], largest["gradient"]


def learner(family: str, scale: float = 0.1) -> tuple[Learner, tuple]:
    """One layer that trains for what the family is pretrained for, and a batch of data."""
    backbone, layers = build(family, "float32", scale, num_layers=1)
    inputs, rng = backbone.complete(batch(backbone)), np.random.default_rng(3)
    kind = next((name for name in ("masked_lm", "causal_lm") if name in layers), "sequence")
    head = layers[kind]
    # Not ``backbone(…, outputs=…)``: on JAX, weights that no output needs would decay.
    outputs = {head.reads: backbone.output[head.reads]}
    if kind == "masked_lm":
        lengths = np.sum(inputs["padding_mask"], 1, keepdims=True)
        positions = rng.integers(0, lengths, (len(lengths), 3))
        targets = {"positions": positions, "token_ids": rng.integers(1, 40, positions.shape)}
        # Rows have different numbers of predictions, and so have the parts of the batch.
        weights = (np.arange(3) < rng.integers(1, 4, lengths.shape)).astype("float32")
        made = Learner(backbone.input, outputs, [MaskedTokens(head)])
        return made, (inputs, {k: v.astype("int32") for k, v in targets.items()}, weights)
    if kind == "causal_lm":
        return Learner(backbone.input, outputs, [NextTokens(head)]), (inputs,)

    def loss(labels, logits, weights):
        losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return mean_loss(losses, weights)

    return Learner(backbone.input, head(outputs), [Supervised(loss)]), (
        inputs,
        rng.integers(0, 3, len(inputs["token_ids"])),
    )


def train(family: str, split: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The losses of steps of AdamW on one batch, and the weights after the last one, by path.

    Args:
        family: a name from ``bf.families()``.
        split: paths of the weights of which no device may have all.
    """
    model, data = learner(family)
    model.compile(optimizers.adamw(1e-3, STEPS))
    losses = [model.train_on_batch(*data, return_dict=True)["loss"] for _ in range(STEPS)]
    if keras.backend.backend() == "jax":
        parts = [each for each in model.weights if not each.value.sharding.is_fully_replicated]
        assert {each.path for each in parts} == set(split)
    weights = {each.path: ops.convert_to_numpy(each) for each in model.weights}
    return {**weights, "losses": np.asarray(losses)}


def step_differences(
    family: str, expected: dict[str, np.ndarray], meshes: Iterable[str]
) -> dict[str, float]:
    """The largest differences of losses and weights: of JAX, and of devices from one device."""
    one = train(family)
    found = {"steps": _largest(one, expected)}
    for name in meshes:
        mesh = keras.distribution.DeviceMesh(MESHES[name], ("batch", "model"))
        layout = layouts.layout_map(learner(family)[0], mesh)
        devices = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
        with devices.scope():
            found[name] = _largest(train(family, layout if MESHES[name][1] > 1 else ()), one)
    return found


def _largest(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return max(float(np.abs(value - theirs[name]).max()) for name, value in ours.items())


def write(folder: Path, families: Iterable[str]) -> None:
    """Writes what TensorFlow computes, for ``compare``."""
    for family in families:
        for name, values in (("values", compute(family)), ("steps", train(family))):
            np.savez(folder / f"{family}-{name}.npz", **values)


def on_jax(folder: Path, arguments: Iterable[str]) -> subprocess.Popen:
    """A process on JAX, with four virtual devices, that calls ``compare``."""
    flags = f"--xla_force_host_platform_device_count={DEVICES} --xla_backend_optimization_level=0"
    return subprocess.Popen(
        [sys.executable, "-m", "tests.on_jax", str(folder), *arguments],
        env={**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags},
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    )


def compare(folder: Path, families: Iterable[str], meshes: Iterable[str]) -> None:
    """Prints a line of JSON for each family: its name, differences, seconds and the device."""
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")  # on GPUs it is TensorFloat-32
    device = jax.devices()[0].device_kind
    for name in LOSSES:
        getattr(objectives, name)
    for family in families:
        begin = time.monotonic()
        row: dict[str, Any] = {"family": family}
        with np.load(folder / f"{family}-values.npz") as expected, jax.enable_x64(True):
            row["outputs"], row["gradients"] = differences(family, dict(expected))
        with np.load(folder / f"{family}-steps.npz") as expected:
            row |= step_differences(family, dict(expected), meshes)
        row |= {"seconds": time.monotonic() - begin, "device": device}
        print(json.dumps(row), flush=True)
    if "tensorflow" in sys.modules:
        sys.exit("TensorFlow was imported.")


if __name__ == "__main__":
    compare(Path(sys.argv[1]), sys.argv[3:], [x for x in sys.argv[2].split(",") if x])
