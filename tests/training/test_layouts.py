"""Which weights Megatron-LM's layout splits, and along which axis."""

import keras
import pytest

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.layers import HeadGate, SelfAttention
from bertfam_tf.training import layouts
from tests.selection import in_full

SIZE = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_heads=4, num_layers=1)
SIZE |= dict(head_size=4, cutoffs=(12, 22))
ROWS, COLUMNS, BIAS = ("model", None), (None, "model"), ("model",)
FEED_FORWARD = {
    "layer_0/feed_forward/intermediate/kernel": COLUMNS,
    "layer_0/feed_forward/intermediate/bias": BIAS,
    "layer_0/feed_forward/output/kernel": ROWS,
}
DENSE = {
    f"layer_0/attention/{name}/{weight}": axes
    for name in ("query", "key", "value")
    for weight, axes in (("kernel", COLUMNS), ("bias", BIAS))
} | {"layer_0/attention/output/kernel": ROWS}
FUSED = {
    "layer_0/attention/query_key_value/kernel": COLUMNS,
    "layer_0/attention/query_key_value/bias": BIAS,
    "layer_0/attention/output/kernel": ROWS,
}
RELATIVE = {
    f"layer_0/attention/{name}/kernel": (None, "model", None)
    for name in ("query", "key", "value", "position", "output")
} | {f"layer_0/attention/{name}_bias/bias": ROWS for name in ("content", "position")}
SEGMENTS = {
    "layer_0/attention/segments/embeddings": (None, "model", None),
    "layer_0/attention/segments/segment_bias/bias": ROWS,
}
TOKENS = {"token_embedding/embeddings": ROWS}
GROUP = {"layer_0/attention": "attention_0_0", "layer_0/feed_forward": "feed_forward_0_0"}
EXPECTED = {
    "bert": TOKENS | DENSE | FEED_FORWARD,
    "gpt2": TOKENS | FUSED | FEED_FORWARD,
    "xlnet": TOKENS | RELATIVE | SEGMENTS | FEED_FORWARD,
    # Clusters of 12, 10 and 18 tokens: four devices share the first.
    "transformer_xl": {"token_embedding/embeddings_0": ROWS} | RELATIVE | FEED_FORWARD,
    "albert": TOKENS
    | {
        path.replace(a, b): axes
        for a, b in GROUP.items()
        for path, axes in (DENSE | FEED_FORWARD).items()
        if path.startswith(a)
    },
    "bilstm": TOKENS,
}


def _map(family, devices=4, axis="model", **changes):
    fields = registry.get(family).config.__dataclass_fields__
    given = {k: v for k, v in {**SIZE, **changes}.items() if k in fields}
    names = [f"cpu:{i}" for i in range(2 * devices)]
    mesh = keras.distribution.DeviceMesh((2, devices), ["batch", "model"], names)
    backbone = bf.build(family, "tiny", **given)
    found = layouts.layout_map(backbone, mesh, axis)
    assert found.device_mesh is mesh
    return {path: found[path].axes for path in found}


@pytest.mark.parametrize("family", EXPECTED)
def test_what_is_split(family):
    assert _map(family) == EXPECTED[family]


@pytest.mark.parametrize("family", in_full(bf.families(), ["albert"]))
def test_every_block_is_split(family):
    """Also of families that share or repeat layers."""
    found = _map(family, num_layers=2, num_groups=2, layers_per_group=2)
    blocks = {path.split("/")[0] for path in found if not path.startswith("token_embedding")}
    expected = {"albert": 2 * 2 * 2, "bilstm": 0, "elmo": 0}
    assert len(blocks) == expected.get(family, 2)


@pytest.mark.parametrize(
    ("family", "change", "path", "found"),
    [
        ("bert", {"num_heads": 2}, "layer_0/attention/query/kernel", "2 heads"),
        ("gpt2", {"num_heads": 2}, "layer_0/attention/query_key_value/kernel", "2 heads"),
        (
            "bert",
            {"intermediate_size": 30},
            "layer_0/feed_forward/intermediate/kernel",
            "30 hidden units",
        ),
    ],
)
def test_what_devices_cannot_share_is_named(family, change, path, found):
    expected = rf"^{path} must be split into 4 equal parts \(mesh axis 'model'\), got {found}\.$"
    with pytest.raises(ValueError, match=expected):
        _map(family, **change)


def test_tokens_that_devices_cannot_share_are_on_each():
    assert _map("bert", vocab_size=42) == DENSE | FEED_FORWARD


def test_an_axis_that_the_mesh_does_not_have():
    with pytest.raises(ValueError, match="Unknown axis of the mesh 'modell'"):
        _map("bert", axis="modell")


def test_gates_of_heads_are_split():
    attention = SelfAttention(4, 4, gate=HeadGate(name="gate"), use_bias=False, name="attention")
    attention.build((None, None, 16))
    mesh = keras.distribution.DeviceMesh((4,), ["model"], [f"cpu:{i}" for i in range(4)])
    found = layouts.layout_map(attention, mesh)
    kernels = [f"attention/{name}/kernel" for name in ("query", "key", "value", "output")]
    assert sorted(found) == sorted([*kernels, "attention/gate/gate"])
