"""Exports whose dense layers compute in bfloat16."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2

import bertfam_tf as bf
from bertfam_tf.export.runtime import load
from bertfam_tf.export.saved_model import computing_in, fallback_directory
from bertfam_tf.text import WordTokenizer
from tests.selection import in_full
from tests.support.exports import nodes, objects, perturbed

TEXTS = ["the film was good", "a dull , unhappy cast", "good " * 20, "not [MASK] bad", "", "film"]
WORDS = WordTokenizer(["<eos>", "<unk>", *(f"w{i}" for i in range(98))])
# bfloat16 has 8 significant bits. Probabilities of MiniLM-L6 move by up to 0.003, and by 0.0011
# between a text alone and in a batch.
ROUNDING = 0.02
# Others read characters.
WITH_IDS = [name for name in bf.families() if name != "elmo"]


@pytest.fixture(scope="module")
def task(smallest):
    return perturbed(bf.TextClassifier.from_pretrained(smallest, pair=False))


@pytest.fixture(scope="module")
def exported(task, tmp_path_factory):
    return task.export(tmp_path_factory.mktemp("exports"), dtype="bfloat16")


def _sources(nodes, name, seen=()):
    """The operations that a tensor is made of, through those that only move weights."""
    by_name = {node.name: node for node in nodes}
    node = by_name.get(name.split(":")[0].lstrip("^"))
    if node is None:
        return {"argument"}
    if node.op in ("Identity", "SplitV", "Unpack", "StridedSlice", "ConcatV2"):
        return _sources(nodes, node.input[0])
    return {node.op}


@pytest.mark.extended
def test_no_weight_is_cast(exported, task):
    """Each product in bfloat16 reads a stored weight, and casts are of activations alone."""
    graph = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
    products, casts = 0, 0
    for function in graph.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "MatMul" and node.attr["T"].type == types_pb2.DT_BFLOAT16:
                products += 1
                assert _sources(function.node_def, node.input[1]) <= {"ReadVariableOp", "argument"}
            if node.op == "Cast":
                casts += 1
                assert _sources(function.node_def, node.input[0]) != {"ReadVariableOp"}
    # For one text and for batches, of texts and of ids: a product for queries, keys and values in
    # all layers but the last, whose queries are those of first tokens, three others, the pooler.
    layers = task.backbone.config.num_layers
    assert products == 4 * (4 * layers + 1 + 1)
    assert casts


@pytest.mark.extended
def test_answers(exported, task):
    servable = load(exported)
    found = servable.run("", {"text": objects(TEXTS)})
    wanted = np.stack([answer["scores"] for answer in task.predict(TEXTS)])
    assert found["scores"].dtype == np.float32
    assert 0 < np.abs(found["scores"] - wanted).max() < ROUNDING
    # Neighbours change an answer by no more than rounding.
    for i, text in enumerate(TEXTS):
        alone = servable.run("", {"text": objects([text])})
        beside = servable.run("", {"text": objects([text, "good " * 30, "film"])})
        np.testing.assert_allclose(alone["scores"][0], found["scores"][i], atol=ROUNDING)
        np.testing.assert_allclose(beside["scores"][0], found["scores"][i], atol=ROUNDING)


def test_files(exported, task):
    size = sum(variable.numpy().nbytes for variable in task.weights)
    stored = sum(file.stat().st_size for file in (exported / "variables").glob("*.data-*"))
    assert stored < 0.75 * size  # the small model's tables of positions stay in float32
    card = json.loads((exported / "assets.extra" / "bertfam.json").read_text("utf-8"))
    assert card["dtype"] == "bfloat16"
    assert card["kernels"] == []
    assert card["int8"] is None
    assert "AVX512-BF16" in card["bfloat16"]["faster_on"]
    assert card["bfloat16"]["fallback"] is None
    dense = [x for x in task._flatten_layers() if isinstance(x, keras.layers.Dense)]
    paths = {layer.path for layer in dense}
    assert {*card["bfloat16"]["bfloat16"], *card["bfloat16"]["float32"]} == paths


@pytest.mark.extended
def test_a_version_in_float32_beside_it(task, tmp_path):
    path = task.export(tmp_path / "model", dtype="bfloat16", fallback=True)
    card = json.loads((path / "assets.extra" / "bertfam.json").read_text("utf-8"))
    assert card["bfloat16"]["fallback"] == "model-float32"
    found = load(tmp_path / "model-float32" / "1").run("", {"text": objects(TEXTS)})
    wanted = np.stack([answer["scores"] for answer in task.predict(TEXTS)])
    np.testing.assert_allclose(found["scores"], wanted, atol=1e-6)


@pytest.mark.parametrize("name", [".", "other/.."])
def test_a_directory_without_a_name(name, tmp_path, monkeypatch):
    (tmp_path / "model" / "other").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "model")
    assert fallback_directory(Path(name)) == tmp_path / "model-float32"


@pytest.mark.extended
def test_language_models(smallest, tmp_path):
    """A table that is an output layer's too is not cast as a whole."""
    shape = dict(vocab_size=1000, hidden_size=48, num_heads=4, intermediate_size=96, num_layers=2)
    shape["vocab_size"] = bf.load_tokenizer(smallest).vocab_size
    task = bf.MaskedLM(bf.build("bert", "tiny", **shape), bf.load_tokenizer(smallest))
    path = perturbed(task).export(tmp_path, dtype="bfloat16")
    servable = load(path)
    found = servable.run("", {"text": objects(["the film was [MASK] good"])})
    wanted = task.predict(["the film was [MASK] good"])
    assert np.isfinite(found["scores"]).all()
    assert wanted
    table = tuple(task.backbone.parts["token_embedding"].embeddings.shape)
    for node in nodes(path):
        if node.op == "Cast":
            shapes = node.attr["_output_shapes"].list.shape
            assert all(tuple(d.size for d in each.dim) != table for each in shapes)


@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(WITH_IDS, ["modernbert", "deberta"]))
def test_families(family, tmp_path):
    shape = dict(vocab_size=100, hidden_size=32, num_heads=2, intermediate_size=64, num_layers=2)
    fields = bf.registry.get(family).config.__dataclass_fields__
    backbone = bf.build(family, "tiny", **{k: v for k, v in shape.items() if k in fields})
    language = 0 if "language_ids" in backbone.input else None
    task = perturbed(bf.TextEmbedder(backbone, WORDS, pair=False, language_id=language))
    texts = ["w1 w2 w3", "w5", "w7 " * 9]
    found = load(task.export(tmp_path, dtype="bfloat16")).run("", {"text": objects(texts)})
    wanted = task.predict(texts)
    cosine = (found["embedding"] * wanted).sum(-1)
    cosine /= np.linalg.norm(found["embedding"], axis=-1) * np.linalg.norm(wanted, axis=-1)
    assert cosine.min() > 0.99


@pytest.mark.extended
def test_a_task_answers_as_its_export(exported, smallest):
    """As ``bertfam evaluate --dtype`` scores it."""
    task = perturbed(bf.TextClassifier.from_pretrained(smallest, pair=False))
    with computing_in(task, "bfloat16"):
        scores = [each["scores"] for each in task.predict(TEXTS)]
    found = load(exported).run("", {"text": np.array([x.encode() for x in TEXTS], object)})
    np.testing.assert_allclose(scores, found["scores"], atol=1e-6)
