"""Exports that answer one text, in a branch without masks, gathers and groups of examples."""

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.export.runtime import load
from tests.support.executed import executed
from tests.support.exports import objects, perturbed

TEXTS = ["the film was good", "a dull , unhappy cast", "good " * 20, "not [MASK] bad", "", "film"]


@pytest.fixture(scope="module")
def task(smallest):
    return perturbed(bf.TextClassifier.from_pretrained(smallest, pair=False))


@pytest.fixture(scope="module", params=["float32", "int8"])
def exported(request, task, tmp_path_factory):
    options = dict(calibration=TEXTS) if request.param == "int8" else {}
    return task.export(tmp_path_factory.mktemp("exports"), dtype=request.param, **options)


@pytest.mark.extended
def test_operations(exported, task):
    check_operations(exported, task)


def check_operations(exported, task):
    """A text alone takes the branch of few operations, two texts the other one."""
    one = executed(exported, {"text": objects(TEXTS[:1])})
    two = executed(exported, {"text": objects(TEXTS[:2])})
    layers = task.backbone.config.num_layers
    # Scores and context of each layer, in one group; a batch has groups.
    attention = ("BatchMatMulV2", "_MklBatchMatMulV2", "_MklFusedBatchMatMulV2")
    assert sum(one[name] for name in attention) == 2 * layers
    assert sum(two[name] for name in attention) > 2 * layers
    # Tables, labels and the tokenizer's kernels gather, layers do not.
    assert one["GatherV2"] <= 9 < two["GatherV2"]
    assert one["SplitV"] + one["Unpack"] < two["SplitV"] + two["Unpack"]
    assert sum(one.values()) < 0.55 * sum(two.values())
    # Queries, keys and values of all layers but the last are one product.
    products = sum(one[name] for name in ("_FusedMatMul", "_QuantizedMatMul", "MatMul"))
    products += one["_MklNativeFusedMatMul"]
    assert products == 4 * layers + 1 + len(("pooler", "classifier"))


@pytest.mark.extended
def test_a_text_alone_has_the_answer_that_it_has_in_a_batch(exported):
    servable = load(exported)
    together = servable.run("", {"text": objects(TEXTS)})
    for i, text in enumerate(TEXTS):
        alone = servable.run("", {"text": objects([text])})
        np.testing.assert_allclose(alone["scores"][0], together["scores"][i], atol=2e-6)
        assert alone["label"][0] == together["label"][i]
        twice = servable.run("", {"text": objects([text, text])})
        np.testing.assert_allclose(alone["scores"][0], twice["scores"][1], atol=2e-6)


@pytest.mark.extended
def test_padding_in_a_single_row_of_ids(exported, task):
    """The mask of a request decides: a row with padding takes the other branch."""
    servable = load(exported)
    packed = task.encode({"text": objects(TEXTS[:1])})
    ids = {name: packed[name].numpy() for name in task.packed_specs}
    padded = {name: np.pad(x, [(0, 0), (0, 3)]) for name, x in ids.items()}
    left = {name: np.pad(x, [(0, 0), (3, 0)]) for name, x in ids.items()}
    wanted = servable.run("ids", ids)["scores"]
    np.testing.assert_allclose(servable.run("ids", padded)["scores"], wanted, atol=2e-6)
    assert np.abs(servable.run("ids", left)["scores"]).sum() > 0
    pair = {name: np.concatenate([x, x]) for name, x in padded.items()}
    np.testing.assert_allclose(servable.run("ids", pair)["scores"][:1], wanted, atol=2e-6)


@pytest.mark.extended
def test_no_weight_is_stored_twice(task, tmp_path):
    path = task.export(tmp_path, attention=8)  # reads keys and values of the last block, and both
    stored = sum(file.stat().st_size for file in (path / "variables").glob("*.data-*"))
    size = sum(variable.numpy().nbytes for variable in task.weights)
    # Biases of queries, keys and values are also stored side by side.
    attentions = [
        x.attention
        for x in task.backbone._flatten_layers()
        if isinstance(x, bf.layers.TransformerBlock)
    ]
    biases = sum(
        dense.bias.numpy().nbytes for x in attentions for dense in (x.query, x.key, x.value)
    )
    assert stored < 1.03 * size + biases
