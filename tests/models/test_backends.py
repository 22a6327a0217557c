"""Models and heads on JAX, in a process that has no TensorFlow, compute what they do on it."""

import os
import subprocess
import sys

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.learner import Batch
from bertfam_tf.objectives import MaskedTokens, NextTokens, SpanBoundary, span_boundary_head
from tests.selection import in_full

SMALL = dict(vocab_size=40, hidden_size=16, intermediate_size=24)
# Masks, biases and sums of both kinds of attention, and a tied output projection.
CASES = [("bert", "sequence"), ("gpt2", "causal_lm")]
CODE = """
import sys

class NoTensorFlow:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tensorflow_text"):
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, NoTensorFlow())
import keras
import numpy as np
import bertfam_tf as bf
from bertfam_tf import heads, layers, models, names, registry

assert keras.backend.backend() == "jax"
family, head, file, size = sys.argv[1:]
stored = np.load(file)
backbone = bf.build(family, "tiny", **eval(size))
layer = heads.build(backbone, head, 3 if registry.get(family).heads[head].has_labels else None)
for variable in [*backbone.weights, *layer.weights]:
    variable.assign(stored[variable.path])
outputs = backbone({name: stored[name] for name in ("token_ids", "padding_mask")})
found = {"sequence_output": outputs["sequence_output"], "logits": layer(outputs)}
if head == "causal_lm":
    from bertfam_tf.learner import Batch
    from bertfam_tf.objectives import MaskedTokens, NextTokens, SpanBoundary, span_boundary_head

    inputs = {name: stored[name] for name in ("token_ids", "padding_mask")}
    targets = {name: stored[name] for name in ("positions", "starts", "ends")}
    targets["token_ids"] = stored["token_ids"][:, :2]
    spans = span_boundary_head(backbone)
    for variable in spans.weights:
        variable.assign(stored[variable.path])
    for objective in (MaskedTokens(layer), NextTokens(layer), SpanBoundary(spans)):
        given = () if isinstance(objective, NextTokens) else (targets, stored["weights"])
        sums = objective.loss(outputs, objective.heads, Batch(inputs, *given))
        found |= {name: sum(both) for name, both in sums.items()}
for name, value in found.items():
    difference = np.abs(np.asarray(value) - stored[name]).max() / np.abs(stored[name]).max()
    print(family, name, f"{difference:.1e}")
    assert difference <= 1e-5
"""


@pytest.mark.parametrize(("family", "head"), in_full(CASES, CASES[:1]))
def test_jax_computes_what_tensorflow_does(family, head, tmp_path):
    pytest.importorskip("jax", reason="needs JAX: pip install 'bertfam_tf[test]'")
    backbone = bf.build(family, "tiny", **SMALL)
    layer = heads.build(backbone, head, 3 if head == "sequence" else None)
    rng = np.random.default_rng(0)
    weights = [*backbone.weights, *layer.weights]
    for variable in weights:
        variable.assign_add(rng.normal(0, 0.3, variable.shape))
    mask = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], "int32")
    given = {"token_ids": rng.integers(1, 40, mask.shape).astype("int32"), "padding_mask": mask}
    outputs = backbone(given)
    expected = {"sequence_output": outputs["sequence_output"], "logits": layer(outputs)}
    if head == "causal_lm":
        given |= {
            "positions": np.array([[1, 5], [2, 0]], "int32"),
            "starts": np.array([[1, 4], [2, 0]], "int32"),
            "ends": np.array([[2, 5], [2, 0]], "int32"),
            "weights": np.array([[1, 0.5], [1, 0]], "float32"),
        }
        targets = {name: given[name] for name in ("positions", "starts", "ends")}
        targets["token_ids"] = given["token_ids"][:, :2]
        spans = span_boundary_head(backbone)
        weights += spans.weights
        for objective in (MaskedTokens(layer), NextTokens(layer), SpanBoundary(spans)):
            more = () if isinstance(objective, NextTokens) else (targets, given["weights"])
            sums = objective.loss(outputs, objective.heads, Batch(given, *more))
            expected |= {name: sum(both) for name, both in sums.items()}
    file = tmp_path / "expected.npz"
    np.savez(file, **given, **expected, **{v.path: v.numpy() for v in weights})
    run = subprocess.run(
        [sys.executable, "-c", CODE, family, head, str(file), repr(SMALL)],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stderr
