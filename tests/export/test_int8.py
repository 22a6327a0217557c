"""Exports whose dense layers compute in int8."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.export import int8, saved_model
from bertfam_tf.export.int8 import KERNEL, Int8Layers
from bertfam_tf.export.runtime import Code, ServingError, load
from bertfam_tf.text import WordTokenizer
from bertfam_tf.training.tuning import add_lora
from tests.support.exports import nodes, objects, perturbed

TEXTS = ["the film was good", "a dull , unhappy cast", "good " * 20, "not [MASK] bad", "", "film"]
WORDS = WordTokenizer(["<eos>", "<unk>", *(f"w{i}" for i in range(98))])

pytestmark = pytest.mark.skipif(
    int8.op_def_registry.get(KERNEL) is None, reason="needs TensorFlow for x86"
)


@pytest.fixture(scope="module")
def task(smallest):
    return perturbed(bf.TextClassifier.from_pretrained(smallest, pair=False))


@pytest.fixture(scope="module")
def exported(task, tmp_path_factory):
    """An export in int8, with one in float32 beside it."""
    directory = tmp_path_factory.mktemp("exports") / "model"
    (directory.with_name("model-float32") / "4").mkdir(parents=True)
    return task.export(directory, dtype="int8", calibration=iter(TEXTS), fallback=True)


@pytest.fixture(scope="module")
def card(exported):
    return json.loads((exported / "assets.extra" / "bertfam.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def served(exported):
    return load(exported)


@pytest.mark.parametrize("shape", [(1, 32, 16), (7, 20, 33), (40, 384, 64)])
@pytest.mark.parametrize("values", ["random", "largest"])
def test_products_are_exact(shape, values):
    """Without VNNI the sum of two products has 16 bits, in which weights of 8 bits saturate."""
    rows, width, units = shape
    rng = np.random.default_rng(0)
    sides = [(rows, width), (width, units)]
    x, kernel = (rng.choice([-1.0, 1.0], side).astype("float32") for side in sides)
    if values == "largest":
        x[0], kernel[:, 0] = 1, 1
    else:
        x, kernel = (array * rng.random(array.shape, "float32") for array in (x, kernel))
    layer = keras.layers.Dense(units, bias_initializer="random_normal")
    layer.build((None, width))
    dense = int8.int8_product(layer, kernel, np.full(width, 127, "float32"))
    trace = int8.Trace()

    def product(x):
        return dense.multiply(trace, dense.quantize(trace, x))

    found = tf.function(product, autograph=False)(x)
    scales = np.abs(kernel).max(0) / 64
    product = np.rint(x * 127).astype(int) @ np.rint(kernel / scales).astype(int)
    expected = product * (scales / 127) + layer.bias.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_what_computes_in_int8(exported, card):
    layer = "layer_0/"
    dense = [f"{layer}attention/{x}" for x in ("key", "output", "query", "value")]
    dense += [f"{layer}feed_forward/{x}" for x in ("intermediate", "output")] + ["pooler/dense"]
    assert card["dtype"] == "int8"
    assert card["kernels"] == [KERNEL]
    assert card["int8"]["int8"] == dense
    assert card["int8"]["float32"] == ["sequence_head/classifier"]
    assert card["int8"]["errors"].keys() == set(dense)
    assert all(0 < error < 0.05 for error in card["int8"]["errors"].values())
    products = nodes(exported, KERNEL)
    fused = [b" ".join(node.attr["fused_ops"].list.s) for node in products]
    # Two signatures, with a branch for one text and one for several. Products with an activation or
    # a residual sum are in the graph without it too, which the graph optimizer removes.
    branches = 4
    assert fused.count(b"BiasAdd GeluExact Dequantize") == branches
    assert fused.count(b"BiasAdd Tanh Dequantize") == branches
    assert fused.count(b"BiasAdd Add Dequantize") == 2 * branches
    # Key and value share their input, the query's is that of the first token alone.
    assert len(nodes(exported, "QuantizeV2")) == 6 * branches
    # One copy of the weights, for both signatures.
    stored = sum(file.stat().st_size for file in (exported / "variables").glob("*.data-*"))
    whole = exported.parent.with_name("model-float32") / "5" / "variables"
    assert stored < 0.6 * sum(file.stat().st_size for file in whole.glob("*.data-*"))


@pytest.mark.extended
def test_answers_are_close_to_those_in_float(task, served, card):
    found = served.run("", {"text": objects(TEXTS)})
    expected = task.predict(TEXTS)
    differences = np.abs(found["scores"] - [row["scores"] for row in expected])
    assert 1e-5 < differences.max() < 0.05
    assert [label.decode() for label in found["label"]] == [row["label"] for row in expected]
    agreement = card["int8"]["agreement"]
    assert agreement["label"] == {"equal": 1.0}
    np.testing.assert_allclose(agreement["scores"]["largest"], differences.max(), atol=1e-5)
    np.testing.assert_allclose(agreement["scores"]["mean"], differences.mean(), atol=1e-5)


@pytest.mark.extended
def test_an_answer_does_not_depend_on_other_rows(task, served):
    """Also where activations of other rows exceed those of the calibration texts."""
    rows = [" ".join(task.tokenizer.vocabulary[i : i + 18]) for i in range(5, 40)]
    together = served.run("", {"text": objects(rows)})["scores"]
    for i in (0, 7, 20):
        alone = served.run("", {"text": objects(rows[i : i + 1])})["scores"]
        np.testing.assert_allclose(alone[0], together[i], atol=1e-6)


@pytest.mark.extended
def test_the_version_in_float32(task, exported, card):
    assert exported.name == "5"  # one directory has a version 4
    fallback = exported.parent.with_name(card["int8"]["fallback"]) / "5"
    assert not nodes(fallback, KERNEL)
    other = json.loads((fallback / "assets.extra" / "bertfam.json").read_text("utf-8"))
    assert (other["dtype"], other["kernels"], other["int8"]) == ("float32", [], None)
    found = load(fallback).run("", {"text": objects(TEXTS)})["scores"]
    np.testing.assert_allclose(found, [x["scores"] for x in task.predict(TEXTS)], atol=1e-5)


@pytest.mark.extended
def test_a_version_that_one_of_the_directories_has(task, exported):
    directory = exported.parent
    with pytest.raises(FileExistsError, match="model-float32 already has a version 4"):
        task.export(directory, 4, dtype="int8", calibration=TEXTS, fallback=True)
    assert [path.name for path in directory.iterdir()] == ["5"]


def test_a_version_appears_in_both_directories_or_in_none(tmp_path):
    made = [tmp_path / "scratch" / name for name in ("int8", "float32")]
    for directory in made:
        directory.mkdir(parents=True)
    targets = [tmp_path / "1", tmp_path / "2"]
    targets[0].mkdir()
    with pytest.raises(FileExistsError):
        saved_model._move(made, targets)
    assert all(directory.is_dir() for directory in made)
    assert not targets[1].exists()


@pytest.mark.extended
@pytest.mark.parametrize("fallback", [None, "model-float32"])
def test_servers_without_the_kernel_refuse_the_model(exported, card, fallback, tmp_path):
    card = {**card, "kernels": ["_NoSuchKernel"], "int8": {**card["int8"], "fallback": fallback}}
    path = shutil.copytree(exported, tmp_path / "1")
    (path / "assets.extra" / "bertfam.json").write_text(json.dumps(card), "utf-8")
    with pytest.raises(ServingError, match=r"no kernel \(_NoSuchKernel; builds for x86") as error:
        load(path)
    assert error.value.code is Code.UNIMPLEMENTED
    assert ("--fallback" if fallback is None else "'model-float32'") in str(error.value)


@pytest.mark.parametrize("kernels", ["x", {"a": 1}, [3, None]])
def test_a_card_that_is_damaged_does_not_matter(tmp_path, kernels):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "bertfam.json").write_text(json.dumps({"kernels": kernels}))
    with pytest.raises(ServingError, match="Could not find SavedModel"):
        load(tmp_path)


def _answers(task, layers, texts):
    """Answers in float32, and those of the int8 layers, in the graph."""

    def answer(text):
        with layers.substituted():
            return task.answer({"text": text})

    return (tf.function(f, autograph=False)(tf.constant(texts)) for f in (
        lambda text: task.answer({"text": text}), answer
    ))  # fmt: skip


def _layers(task, texts=TEXTS):
    return Int8Layers(task, task.answer, [{"text": objects(texts)}])


@pytest.mark.extended
def test_several_exports_warn_of_no_retracing(task, caplog):
    layers = _layers(task)
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        for _ in range(8):
            layers._run(task.answer, [{"text": objects(["film"])}], {})
    finally:
        logger.removeHandler(caplog.handler)
    assert "retracing" not in caplog.text


@pytest.mark.extended
def test_layers_that_lose_accuracy_stay_in_float(task, card, monkeypatch):
    errors = card["int8"]["errors"]
    limit = sorted(errors.values())[3]
    monkeypatch.setattr(int8, "_LARGEST_ERROR", limit + 1e-5)
    layers = _layers(task)
    assert set(layers.in_int8) == {path for path, error in errors.items() if error <= limit}
    assert set(layers.in_float) - {"sequence_head/classifier"} == errors.keys() - layers.in_int8


@pytest.mark.extended
def test_layers_that_no_calibration_text_reaches_stay_in_float(smallest):
    """Such as a head that reads masks alone, for texts without one."""
    task = perturbed(bf.MaskedLM.from_pretrained(smallest))
    reached = set(_layers(task, ["a [MASK] film"]).in_int8)
    missed = reached & set(_layers(task, ["a good film"]).in_float)
    assert missed
    assert all("masked_lm" in path for path in missed)


@pytest.mark.extended
def test_a_task_without_layers_for_int8(task, monkeypatch):
    monkeypatch.setattr(int8, "_SMALLEST", 1000)
    with pytest.raises(ValueError, match="TextClassifier has no dense layer that can be computed"):
        _layers(task)


@pytest.mark.full
def test_low_rank_updates_are_merged(smallest):
    task = perturbed(bf.TextClassifier.from_pretrained(smallest, pair=False), 0.3)
    add_lora(task, 2)
    task = perturbed(task, 0.3)
    layers = _layers(task)
    assert "layer_0/attention/query" in layers.in_int8
    expected, found = _answers(task, layers, TEXTS)
    assert 1e-5 < np.abs(found["scores"] - expected["scores"]).max() < 0.15


@pytest.mark.full
@pytest.mark.parametrize("family", ["xlnet", pytest.param("gpt2", marks=pytest.mark.full)])
def test_families_that_compute_padding(family):
    shape = dict(vocab_size=100, hidden_size=32, num_heads=2, intermediate_size=48, num_layers=1)
    known = {k: v for k, v in shape.items() if k in bf.build(family, "tiny").config.to_dict()}
    task = perturbed(bf.CausalLM(bf.build(family, "tiny", **known), WORDS, max_length=16))
    texts = ["w1 w2 w3", "w7 w9 w9 w50", "w4"]
    layers = _layers(task, texts)
    assert len(layers.in_int8) > 1
    expected, found = _answers(task, layers, texts)
    largest = np.abs(found["log_likelihood"] - expected["log_likelihood"]).max()
    assert 1e-6 < largest < 0.02 * np.abs(expected["log_likelihood"]).max()


@pytest.mark.full
def test_inside_of_loops(tmp_path):
    shape = dict(vocab_size=100, hidden_size=32, num_heads=2, num_layers=1)
    task = perturbed(bf.CausalLM(bf.build("gpt2", "tiny", **shape), WORDS, max_length=16))
    texts = ["w1 w2 w3", "w7 w9 w9 w50", "w4"]
    path = task.export(tmp_path, dtype="int8", calibration=texts, max_new_tokens=3)
    found = load(path).run("generate", {"text": objects(texts)})["text"]
    pairs = zip(found, task.generate(texts, max_new_tokens=3), strict=True)
    words = [(text.decode().split(), expected.split()) for text, expected in pairs]
    # Float32 and int8 may differ where two tokens are about as likely.
    assert all(one[0] == other[0] and len(one) == len(other) for one, other in words)
    equal = [a == b for one, other in words for a, b in zip(one, other, strict=True)]
    assert np.mean(equal) >= 2 / 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(dtype="int8"), "dtype='int8' needs calibration, a few hundred typical texts"),
        (dict(dtype="int8", calibration=[]), "needs calibration, a few hundred typical texts"),
        (dict(dtype="int8", calibration="text"), "calibration must be a list of texts, got a str"),
        (dict(dtype="int8", calibration=[("a", "b")]), "must have 1 texts, .*, got 2"),
        (
            dict(dtype="int8", calibration=[1]),
            "text of a calibration example must be texts, got .1,.",
        ),
        (dict(calibration=TEXTS), "calibration is only for dtype='int8', got dtype='float32'"),
        (
            dict(dtype="bfloat16-weights", fallback=True),
            "fallback is only for dtype='int8' and dtype='bfloat16', got dtype='bfloat16-weights'",
        ),
    ],
)
def test_refused(task, options, error, tmp_path):
    with pytest.raises(ValueError, match=error):
        task.export(tmp_path / "model", **options)
    assert not any(tmp_path.rglob("*.pb"))


def test_builds_without_the_kernel_do_not_export(task, monkeypatch, tmp_path):
    monkeypatch.setattr(int8, "KERNEL", "_NoSuchKernel")
    with pytest.raises(ValueError, match="TensorFlow has in builds for x86 CPUs only"):
        task.export(tmp_path, dtype="int8", calibration=TEXTS)


def test_few_calibration_texts_are_read(task, monkeypatch):
    read = []
    monkeypatch.setattr(saved_model, "_MOST_TEXTS", 5)
    monkeypatch.setattr(saved_model, "Int8Layers", lambda *args: args[2])
    texts = (read.append(i) or "good" for i in range(9))
    batches = saved_model._calibrated(task, texts, None, {})
    assert [len(batch["text"]) for batch in batches] == [5]
    assert read == list(range(5))
