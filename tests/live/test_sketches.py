"""Sketched families against the reference implementation, on perturbed weights in float64."""

from unittest import mock

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.checkpoints.fill import oriented
from tests import parity
from tests.models import sketches

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.live
SHAPE = dict(vocab_size=40, hidden_size=16, num_hidden_layers=4, num_attention_heads=4)
SHAPE |= dict(intermediate_size=24, max_position_embeddings=32, pad_token_id=0)


def _dense(ours, theirs, *, bias=True):
    kernel = {f"{ours}/kernel": f"{theirs}.weight|T"}
    return kernel | ({f"{ours}/bias": f"{theirs}.bias"} if bias else {})


def _norm(ours, theirs, *, bias=True):
    gamma = {f"{ours}/gamma": f"{theirs}.weight"}
    return gamma | ({f"{ours}/beta": f"{theirs}.bias"} if bias else {})


def _table(ours, theirs):
    return {f"{ours}/embeddings": f"{theirs}.weight"}


def _mobilebert():
    config = transformers.MobileBertConfig(
        **SHAPE, embedding_size=8, intra_bottleneck_size=12, num_feedforward_networks=3
    )
    names = _table("token_embedding", "embeddings.word_embeddings")
    names |= _table("position_embedding", "embeddings.position_embeddings")
    names |= _table("segment_embedding", "embeddings.token_type_embeddings")
    names |= _dense("embedding_projection", "embeddings.embedding_transformation")
    names |= _norm("embedding_norm", "embeddings.LayerNorm")
    for i in range(4):
        ours, theirs = f"layer_{i}", f"encoder.layer.{i}"
        for one, other in (
            ("in", "bottleneck.input"),
            ("shared", "bottleneck.attention"),
            ("out", "output.bottleneck"),
        ):
            names |= _dense(f"{ours}_{one}", f"{theirs}.{other}.dense")
            names |= _norm(f"{ours}_{one}_norm", f"{theirs}.{other}.LayerNorm")
        for part in ("query", "key", "value"):
            names |= _dense(f"{ours}_attention/{part}", f"{theirs}.attention.self.{part}")
        names |= _dense(f"{ours}_attention/output", f"{theirs}.attention.output.dense")
        names |= _norm(f"{ours}_attention_norm", f"{theirs}.attention.output.LayerNorm")
        for k, place in enumerate((".ffn.0", ".ffn.1", "")):
            part = f"{ours}_feed_forward_{k}"
            names |= _dense(f"{part}/intermediate", f"{theirs}{place}.intermediate.dense")
            names |= _dense(f"{part}/output", f"{theirs}{place}.output.dense")
            names |= _norm(f"{part}_norm", f"{theirs}{place}.output.LayerNorm")
    return config, names


CASES = {
    "mobilebert": (_mobilebert, {}),
}


@pytest.mark.parametrize("length", [5, 31])
@pytest.mark.parametrize("family", sketches.FAMILIES)
def test_hidden_states(family, length):
    make, fields = CASES[family]
    config, names = make()
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    with mock.patch.dict(registry._FAMILIES, sketches.FAMILIES):
        backbone = bf.build(family, "tiny", dtype="float64", **fields)
    paths = {variable.path: variable for variable in backbone.weights}
    assert paths.keys() == names.keys()
    for path, variable in paths.items():
        name, _, transform = names[path].partition("|")
        variable.assign(oriented(tensors[name], transform, variable.shape))
    tokens = np.random.default_rng(0).integers(3, 40, (2, length))
    mask = np.ones_like(tokens)
    mask[1, length - 2 :] = 0
    tokens[mask == 0] = config.pad_token_id
    with torch.no_grad():
        theirs = model(
            input_ids=torch.tensor(tokens),
            attention_mask=torch.tensor(mask),
            output_hidden_states=True,
        ).hidden_states
    given = {"token_ids": tokens.astype("int32"), "padding_mask": mask.astype("int32")}
    ours = backbone(given)["hidden_states"]
    assert len(ours) == len(theirs) == 5
    found = [
        parity.relative(np.asarray(a) * mask[..., None], b.numpy() * mask[..., None])
        for a, b in zip(ours, theirs, strict=True)
    ]
    print(f"{family}: largest relative difference {max(found):.1e}")
    assert max(found) <= parity.TOLERANCE, found
