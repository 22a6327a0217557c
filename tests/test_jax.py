"""Keras on JAX: families, training, and several devices, beside TensorFlow and one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import heads, layers
from bertfam_tf.corpora import Format, Masking, Shards, shards
from bertfam_tf.corpora.documents import FileRange
from bertfam_tf.objectives import MaskedTokens, SpanBoundary, span_boundary_head
from bertfam_tf.training import optimizers
from bertfam_tf.training.learner import Learner
from tests import on_jax
from tests.selection import in_full

pytest.importorskip("jax", reason="needs JAX: pip install 'bertfam_tf[test]'")

ROOT = Path(__file__).parent.parent
LENGTH, PREDICTIONS, STEPS = 24, 4, 6
# The first has the fewest operations to compile; the next ones attend by separate projections, and
# to relative positions.
SEVERAL = ("gpt2",), ("bert", "xlnet")
OTHERS = tuple(family for family in bf.families() if family not in sum(SEVERAL, ()))
CASES = [(SEVERAL[0], ("model",)), (SEVERAL[1], tuple(on_jax.MESHES)), (OTHERS, ())]


@pytest.mark.extended
@pytest.mark.parametrize(("families", "meshes"), in_full(CASES, CASES[:1]))
def test_families(families, meshes, tmp_path):
    """Outputs, gradients and steps, in a process that never imports TensorFlow."""
    on_jax.write(tmp_path, families)
    with on_jax.on_jax(tmp_path, [",".join(meshes), *families]) as process:
        printed, _ = process.communicate()
    print(printed)
    assert process.returncode == 0
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row.pop("family") for row in rows] == list(families)
    for row in rows:
        assert row.keys() == {"outputs", "gradients", "steps", *meshes, "seconds", "device"}
        del row["seconds"], row["device"]
        # Without AdamW's decay, or without clipping, steps of one family would differ by 8e-6.
        assert all(0 <= difference <= 5e-6 for difference in row.values())


def gradients_of_shared_vectors() -> None:
    """Prints gradients of vectors that 3,000 tokens look up, as JSON by the kind of layer."""
    import jax
    from keras import ops

    ids = np.ones((6, 500), "int32")
    made = {
        "tokens": (layers.Embedding(3, 4, dtype="mixed_bfloat16"), (ids,)),
        "positions": (
            layers.PositionEmbedding(500, dtype="mixed_bfloat16"),
            (np.ones((6, 500, 4), "float32"), ids),
        ),
        "relative": (layers.RelativeBias(3, 4, dtype="mixed_bfloat16"), (ids,)),
        "adaptive": (layers.AdaptiveEmbedding(3, 4, 4, dtype="mixed_bfloat16"), (ids,)),
    }
    found = {}
    for name, (layer, inputs) in made.items():
        assert layer(*inputs).dtype == "bfloat16"

        def total(values, layer=layer, inputs=inputs):
            with on_jax.keras.StatelessScope(zip(layer.weights, values, strict=True)):
                return ops.sum(ops.cast(layer(*inputs), "float32"))

        gradients = jax.jit(jax.grad(total))([weight.value for weight in layer.weights])
        found[name] = np.asarray(gradients[0])[1].tolist()
    print(json.dumps(found))


@pytest.mark.full
def test_gradients_of_what_thousands_of_tokens_share():
    """With sums in half precision they would be 256."""
    done = subprocess.run(
        [sys.executable, "-c", "from tests.test_jax import *; gradients_of_shared_vectors()"],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout)
    scale = found.pop("adaptive")  # which multiplies with the root of the width
    assert scale == [6000.0] * 4
    assert set(found) == {"tokens", "positions", "relative"}
    assert all(gradient == [3000.0] * 4 for gradient in found.values()), found


def train_on_shards(checkpoint: str, folder: str, file: str) -> None:
    """Writes the losses of a few steps, and the weights after them."""
    import tensorflow as tf

    tokenizer = bf.load_tokenizer(checkpoint)
    backbone = bf.load_backbone(checkpoint, dropout=0.0, attention_dropout=0.0)
    head, spans = heads.build(backbone, "masked_lm"), span_boundary_head(backbone)
    rng = np.random.default_rng(0)
    for weight in (*head.weights, *spans.weights):
        weight.assign(rng.normal(0, 0.02, weight.shape) + (weight.name == "gamma"))

    def padded(inputs, targets, weights):
        def to(width, x):
            return tf.ensure_shape(tf.pad(x, [[0, 0], [0, width - tf.shape(x)[1]]]), (8, width))

        names = ("positions", "token_ids", "starts", "ends")
        return (
            {name: to(LENGTH, x) for name, x in inputs.items()},
            {name: to(PREDICTIONS, targets[name]) for name in names},
            to(PREDICTIONS, weights),
        )

    read = Shards([folder], Format(tokenizer, LENGTH), seed=1)
    masking = Masking(tokenizer, 0.3, max_predictions=PREDICTIONS)
    data = read.batches(8, masking, passes=None).map(padded).take(STEPS)
    outputs = {"sequence_output": backbone.output["sequence_output"]}
    learner = Learner(backbone.input, outputs, [MaskedTokens(head), SpanBoundary(spans)])
    learner.compile(optimizers.adamw(1e-3, STEPS))
    losses = learner.fit(data, epochs=1, verbose=0).history
    again = learner.evaluate(data, verbose=0, return_dict=True)
    np.savez(
        file,
        **{f"fit {name}": value for name, value in losses.items()},
        **{f"evaluate {name}": value for name, value in again.items()},
        **{weight.path: weight.numpy() for weight in learner.weights},
    )


@pytest.mark.full
def test_a_run_on_token_ids_in_tfrecords(tiny, tmp_path):
    """tf.data reads and masks for both; JAX trains as TensorFlow does."""
    lines = [f"good film {'the ' * (i % 5)}bad plot {'dull ' * (i % 3)}." for i in range(60)]
    (tmp_path / "text").write_text("\n".join(lines))
    form, folder = Format(bf.load_tokenizer(tiny), LENGTH), tmp_path / "shards"
    options = {"documents": "line", "sentences": "line", "seed": 3}
    files = [{"name": "text"}]
    job = shards.description(form, files=files, unit=10**6, **options)
    units = [shards.Unit(0, (FileRange(tmp_path / "text"),))]
    shards.begin(folder, job)
    shards.write_shard(folder, units[0], form, **options)
    shards.finish(folder, job, units)
    arguments = [str(tiny), str(folder)]
    train_on_shards(*arguments, str(tmp_path / "tensorflow.npz"))
    subprocess.run(
        [sys.executable, "-c", "import sys; from tests.test_jax import *; "
         "assert on_jax.keras.backend.backend() == 'jax'; train_on_shards(*sys.argv[1:])",
         *arguments, str(tmp_path / "jax.npz")],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=ROOT,
        check=True,
    )  # fmt: skip
    expected, found = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("tensorflow", "jax"))
    assert found.keys() == expected.keys()
    difference = {
        name: float((np.abs(found[name] - x) / np.maximum(1, np.abs(x))).max())
        for name, x in expected.items()
    }
    print(max(difference.values()), found["fit loss"], found["evaluate loss"])
    assert max(difference.values()) <= 1e-5, difference
    assert found["evaluate loss"] < 0.9 * found["fit loss"][0]
