"""Tasks that share a backbone: steps, order, storing, exports, what is refused."""

import copy
import functools
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors import safe_open

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.export import BatchingOptions
from bertfam_tf.export.runtime import load
from bertfam_tf.sources import CheckpointError
from bertfam_tf.tasks.sampling import batches_per_task
from bertfam_tf.text import CharacterTokenizer
from tests import published
from tests.selection import only_in

TEXTS = ["a good film", "bad movie", "it is", "very dull", "plot", "we play"]
PAIRS = (TEXTS, TEXTS[::-1])
LABELS = ["pos", "neg", "pos", "neg", "pos", "neg"]
SCORES = [0.5, 1.0, 0.0, 0.25, 0.75, 0.1]
TAGS = [["O", "B-X"]] * 4
WORDS = [["good", "film"], ["it", "is"], ["we", "play"], ["bad", "movie"]]
DATA = {"film": (TEXTS, LABELS), "score": (PAIRS, SCORES), "words": (WORDS, TAGS)}


def _tasks(path, **options):
    quiet = dict(dropout=0.0, attention_dropout=0.0)
    backbone = bf.load_backbone(path, **quiet)
    tokenizer = bf.load_tokenizer(path)
    keras.utils.set_random_seed(0)
    return {
        "film": bf.TextClassifier(backbone, tokenizer, labels=["neg", "pos"], **options),
        "score": bf.TextRegressor(backbone, tokenizer, pair=True, **options),
        "words": bf.TokenTagger(backbone, tokenizer, tags=["O", "B-X", "I-X"], **options),
    }


@pytest.fixture(scope="module")
def model(smallest):
    return bf.MultiTask(_tasks(smallest))


@pytest.fixture(scope="module")
def trained(smallest):
    model = bf.MultiTask(_tasks(smallest))
    history = model.fit(DATA, batch_size=2, epochs=2, validation_data=DATA, verbose=0).history
    return model, history


@pytest.mark.extended
def test_one_batch(model):
    """Of raw text, the answers; else batches of `text_batches`, as before."""
    texts = {"film": TEXTS, "score": PAIRS}
    answers, expected = model.predict_on_batch(texts), model.predict(texts)
    assert [x["label"] for x in answers["film"]] == [x["label"] for x in expected["film"]]
    np.testing.assert_allclose(answers["score"], expected["score"], atol=1e-6)
    for method in (model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match=r"Expected a batch of text_batches\(\); fit\(\)"):
            method(DATA)
    inputs, targets = next(iter(model.text_batches(DATA, batch_size=2, seed=0)))
    assert "film_loss" in model.test_on_batch(inputs, targets, return_dict=True)
    assert set(model.predict_on_batch(inputs)) == set(DATA)


@only_in("full", "score", "words", "film")
@pytest.mark.parametrize("name", list(DATA))
def test_a_step_is_that_of_the_task_alone(smallest, name):
    """The gradients, of the backbone and the head; heads of other tasks stay as they are."""
    alone, shared = _tasks(smallest)[name], _tasks(smallest)
    model = bf.MultiTask(shared)
    for each in (alone, model):
        each.compile(optimizer=keras.optimizers.SGD(0.1))
    before = {n: [w.numpy() for w in t.head.weights] for n, t in shared.items()}
    found = alone.fit(*DATA[name], batch_size=8, verbose=0).history["loss"]
    shares = {name: 1.0}
    history = model.fit(DATA, batch_size=8, sampling=shares, steps_per_epoch=1, verbose=0).history
    np.testing.assert_allclose(history[f"{name}_loss"], found, rtol=1e-5)
    np.testing.assert_allclose(history["loss"], found, rtol=1e-5)
    expected = {v.path: v.numpy() for v in alone.trainable_weights}
    changed = {v.path: v.numpy() for v in shared[name].trainable_weights}
    assert expected.keys() == changed.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(changed[path], value, rtol=1e-5, atol=1e-6, err_msg=path)
    for other, values in before.items():
        now = [w.numpy() for w in shared[other].head.weights]
        same = [np.array_equal(*each) for each in zip(values, now, strict=True)]
        assert all(same) == (other != name)


@pytest.mark.full
def test_each_example_once_in_an_epoch(smallest):
    """In batches of one task, in another order in each epoch; the same with a seed."""
    seen: list = []

    class Batches(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append([])

        def on_train_batch_end(self, batch, logs=None):
            seen[-1].append(tuple(int(x) for x in self.model.step_counts.take()))

    model = bf.MultiTask(_tasks(smallest))
    options = dict(batch_size=2, verbose=0, seed=3, callbacks=[Batches()])
    model.fit(DATA, epochs=2, **options)
    model.fit(DATA, epochs=1, **options)
    # 3 batches of texts, 3 of pairs, 2 of words; each row has its special tokens.
    assert [len(each) for each in seen] == [8, 8, 8]
    rows = [sum(examples for examples, *_ in epoch) for epoch in seen]
    assert rows == [16, 16, 16]
    tokens = [sum(tokens for *_, tokens in epoch) for epoch in seen]
    alone = {n: model[n].count_tokens(x) for n, x in _features().items()}
    assert tokens == [sum(int(tf.reduce_sum(each)) for each in alone.values())] * 3
    assert seen[0] != seen[1]


def _features():
    words = [" ".join(each) for each in WORDS]
    return {
        "film": {"text": tf.constant(TEXTS)},
        "score": {"text": tf.constant(PAIRS[0]), "text_pair": tf.constant(PAIRS[1])},
        "words": {"text": tf.constant(words)},
    }


@pytest.mark.parametrize(
    ("sampling", "steps", "expected"),
    [
        (1.0, None, {"a": 100, "b": 9}),
        (0.0, None, {"a": 55, "b": 54}),
        (0.5, 26, {"a": 20, "b": 6}),
        ({"a": 1, "b": 3}, 8, {"a": 2, "b": 6}),
        ({"b": 1}, None, {"a": 0, "b": 109}),
    ],
)
def test_sampling(sampling, steps, expected):
    assert batches_per_task({"a": 100, "b": 9}, sampling, steps) == expected


@pytest.mark.full
def test_history_and_scores(trained):
    model, history = trained
    assert history["loss"][-1] < history["loss"][0]
    total = sum(history[f"{name}_loss"][0] for name in DATA)
    np.testing.assert_allclose(history["loss"][0], total, rtol=1e-5)
    scores = model.evaluate(DATA, verbose=0)
    np.testing.assert_allclose(scores["film"]["loss"], history["val_film_loss"][-1], rtol=1e-4)
    np.testing.assert_allclose(scores["score"]["pearson"], history["val_score_pearson"][-1], 1e-3)
    assert set(scores["words"]) >= {"precision", "recall", "f1"}
    alone = model["film"].evaluate(*DATA["film"], verbose=0, return_dict=True)
    assert scores["film"] == pytest.approx(alone)


@pytest.mark.full
def test_only_some_tasks_are_validated(smallest):
    model = bf.MultiTask(_tasks(smallest))
    model.compile(metrics={"film": ["f1"]})
    weighted = {**DATA, "film": (*DATA["film"], [1.0, 1.0, 0.0, 0.5, 1.0, 2.0])}
    part = {"film": DATA["film"]}
    history = model.fit(weighted, batch_size=4, validation_data=part, verbose=0).history
    assert {each for each in history if each.startswith("val_")} == {
        "val_loss",
        "val_film_loss",
        "val_film_f1",
    }
    assert history["val_loss"] == history["val_film_loss"]
    assert set(model.evaluate(part, verbose=0)["film"]) == {"loss", "f1"}


def test_a_metric_of_an_earlier_compile_keeps_its_name(smallest):
    model = bf.MultiTask(_tasks(smallest))
    metric = keras.metrics.SparseCategoricalAccuracy(name="right")
    for _ in range(2):
        model.compile(metrics={"film": [metric]})
        assert "film_right" in model.get_metrics_result()
    assert metric.name == "right"


def test_a_metric_whose_name_begins_with_its_task_s(smallest):
    model = bf.MultiTask(_tasks(smallest))

    def film_mean(y_true, y_pred):
        return keras.ops.mean(y_pred, axis=-1)

    model.compile(
        metrics={"film": [keras.metrics.SparseCategoricalAccuracy("film_top"), film_mean]}
    )
    assert {"film_film_top", "film_film_mean"} < model.get_metrics_result().keys()


def test_a_metric_by_name_has_it(smallest):
    model = bf.MultiTask(_tasks(smallest))
    model.compile(metrics={"score": ["mse", functools.partial(keras.metrics.mean_squared_error)]})
    assert {"score_mse", "score_partial"} < model.get_metrics_result().keys()


@pytest.mark.extended
@pytest.mark.parametrize("eager", [False, True])
def test_the_loss_of_a_subclass_is_reported(smallest, eager):
    class Shifted(bf.MultiTask):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return 100 + super().compute_loss(x, y, y_pred, sample_weight, training)

    data = {name: DATA[name] for name in ("film", "score")}
    tasks = _tasks(smallest)
    model = Shifted({name: tasks[name] for name in data})
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=eager)
    losses = [scores["loss"] for scores in model.evaluate(data, verbose=0).values()]
    history = model.fit(data, validation_data=data, verbose=0).history
    for name in ("loss", "val_loss"):  # the mean of two steps
        assert history[name] == pytest.approx([100 + sum(losses) / 2])


@pytest.mark.extended
def test_runs_eagerly(model):
    """Where the empty batches of the other tasks have known sizes."""
    expected = model.evaluate(DATA, verbose=0)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    found = model.fit(DATA, verbose=0).history
    for name in ("film", "score"):
        assert found[f"{name}_loss"] == pytest.approx([expected[name]["loss"]], rel=1e-5)


@pytest.mark.extended
def test_metrics_have_no_sample_weights(smallest):
    """As in Keras, and as the task alone."""
    model = bf.MultiTask(_tasks(smallest))
    model.compile(keras.optimizers.SGD(0.0))
    weights = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    film = {"film": (*DATA["film"], weights)}
    alone = model["film"].evaluate(*DATA["film"], sample_weight=weights, return_dict=True)
    for data in ({**DATA, **film}, DATA):
        history = model.fit(data, validation_data=film, verbose=0).history
        assert history["val_film_accuracy"][0] == pytest.approx(alone["accuracy"])
        assert history["val_film_loss"][0] == pytest.approx(alone["loss"])


@pytest.mark.extended
def test_save_and_load(model, tmp_path):
    model.save(tmp_path / "saved")
    with safe_open(tmp_path / "saved" / "model.safetensors", "np") as stored:
        names = set(stored.keys())
        count = sum(int(np.prod(stored.get_slice(n).get_shape())) for n in names)
    assert count == sum(int(np.prod(w.shape)) for w in model.weights if "seed" not in w.path)
    loaded = bf.load(tmp_path / "saved")
    assert loaded["film"].backbone is loaded["words"].backbone
    texts = {"film": TEXTS, "score": PAIRS, "words": WORDS}
    before, after = model.predict(texts), loaded.predict(texts)
    np.testing.assert_array_equal(after["score"], before["score"])
    assert str(after["film"]) == str(before["film"])
    assert str(after["words"]) == str(before["words"])


def test_files_of_keras(model, tmp_path):
    """Which ModelCheckpoint writes by default, after the first epoch."""
    with pytest.raises(ValueError, match=r"directory, got .*\.keras\. .* save_weights_only=True"):
        model.save(str(tmp_path / "m.keras"), overwrite=True)
    with pytest.raises(ValueError, match="no validation_split or columns; use validation_data"):
        model.fit(DATA, validation_split=0.5)


@only_in("full", "weight", "tasks")
@pytest.mark.parametrize("change", ["task", "weight", "tasks"])
def test_a_changed_file_is_refused(model, tmp_path, change):
    model.save(tmp_path / "saved")
    file = tmp_path / "saved" / "bertfam.json"
    stored = json.loads(file.read_text())
    if change == "task":
        stored["tasks"]["film"]["task"] = "TextClassifer"
    elif change == "tasks":
        stored["tasks"] = {"film": stored["tasks"]["film"]}
    else:
        stored["tasks"]["film"]["options"]["labels"] = ["a", "b", "c"]
    file.write_text(json.dumps(stored))
    named = {"task": "TextClassifer", "weight": "film/", "tasks": "two tasks|score/"}
    with pytest.raises(CheckpointError, match=named[change]):
        bf.load(tmp_path / "saved")


@pytest.mark.full
def test_export(model, tmp_path):
    """One SavedModel, a signature for each task, the backbone's weights once."""
    directory = model.export(tmp_path / "export", batching=BatchingOptions())
    served = load(directory)
    wanted = {"film", "score", "words", "words_entities"}
    assert {n for n in served.signatures if not n.startswith("__")} == wanted
    texts = np.array([each.encode() for each in TEXTS], object)
    found = served.run("film", {"text": texts})["scores"]
    expected = np.stack([each["scores"] for each in model["film"].predict(TEXTS)])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    pair = served.run("score", {"text": texts, "text_pair": texts[::-1]})
    np.testing.assert_allclose(*pair.values(), model["score"].predict(PAIRS), atol=1e-6)
    weights = sum(int(np.prod(w.shape)) for w in model.weights) * 4
    stored = os.path.getsize(directory / "variables" / "variables.data-00000-of-00001")
    assert stored < weights + 16384  # with the names and the graph of objects
    card = json.loads((directory / "assets.extra" / "bertfam.json").read_text())
    assert card["labels"]["film"] == ["neg", "pos"]
    assert (directory / "assets" / "labels_words.txt").read_text() == "O\nB-X\nI-X\n"


@pytest.mark.extended
def test_export_with_equal_tokenizers(tmp_path):
    """The lookup tables of each of several objects."""
    task = published.task("TextClassifier", "roberta")
    other = bf.TextRegressor(task.backbone, copy.copy(task.tokenizer), max_length=task.max_length)
    directory = bf.MultiTask({"film": task, "score": other}).export(tmp_path / "export")
    texts = {"text": np.array([each.encode() for each in TEXTS], object)}
    found = load(directory).run("score", texts)
    np.testing.assert_allclose(*found.values(), other.predict(TEXTS), atol=1e-6)


@pytest.mark.full
def test_export_with_smaller_weights(model, tmp_path):
    served = load(model.export(tmp_path / "export", dtype="bfloat16"))
    found = served.run("film", {"text": np.array([b"a good film"], object)})["scores"]
    np.testing.assert_allclose(
        found[0], model["film"].predict("a good film")[0]["scores"], atol=0.05
    )
    with pytest.raises(ValueError, match="'int8' is for one task"):
        model.export(tmp_path / "int8", dtype="int8", calibration=TEXTS)
    known = "batching, calibration, dtype, fallback, metrics, version"
    with pytest.raises(TypeError, match=f"'length'.*{known}"):
        model.export(tmp_path / "other", length=8)


@pytest.mark.full
def test_data_of_unknown_size(smallest):
    model = bf.MultiTask(_tasks(smallest))
    rows = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    data = {**DATA, "film": rows.filter(lambda text, label: tf.strings.length(text) > 0)}
    with pytest.raises(ValueError, match="'film' has no known size: steps_per_epoch"):
        model.fit(data)
    shares = {"film": 2, "score": 1, "words": 1}
    history = model.fit(data, sampling=shares, steps_per_epoch=4, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.extended
def test_refused(smallest):
    tasks = _tasks(smallest)
    film, score = tasks["film"], tasks["score"]
    other = _tasks(smallest)["score"]
    with pytest.raises(ValueError, match="two tasks or more"):
        bf.MultiTask({"film": film})
    with pytest.raises(ValueError, match="'film' and 'score' have two backbones"):
        bf.MultiTask({"film": film, "score": other})
    with pytest.raises(ValueError, match="letters, digits and _"):
        bf.MultiTask({"film": film, "a score": score})
    with pytest.raises(ValueError, match="begins with the name of the task 'film'"):
        bf.MultiTask({"film": film, "film_score": score})
    with pytest.raises(ValueError, match="two names"):
        bf.MultiTask({"a": film, "b": film})
    with pytest.raises(ValueError, match="has no loss: TextEmbedder"):
        bf.MultiTask({"a": film, "b": bf.TextEmbedder(film.backbone, film.tokenizer)})
    with pytest.raises(ValueError, match="'filn'"):
        bf.MultiTask({"film": film, "score": score}, loss_weights={"filn": 1})
    model = bf.MultiTask({"film": film, "score": score})
    with pytest.raises(ValueError, match="'score' has no data"):
        model.fit({"film": DATA["film"]})
    with pytest.raises(ValueError, match="'words'"):
        model.fit(DATA)
    with pytest.raises(ValueError, match="shares of at least 0"):
        model.fit({"film": DATA["film"], "score": DATA["score"]}, sampling={"film": -1, "score": 2})
    with pytest.raises(ValueError, match="accumulation_steps must be 1"):
        model.compile(accumulation_steps=2)
    with pytest.raises(ValueError, match="in a dict by task"):
        model.predict(TEXTS)
    with pytest.raises(KeyError, match="'words'"):
        model["words"]


@pytest.mark.full
def test_weights_of_losses(smallest):
    model = bf.MultiTask(_tasks(smallest), loss_weights={"film": 0.0, "score": 2.0})
    history = model.fit(DATA, batch_size=8, verbose=0).history
    total = 2 * history["score_loss"][0] + history["words_loss"][0]
    np.testing.assert_allclose(history["loss"][0], total, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "family", [name for name in bf.families() if "sequence" in registry.get(name).heads]
)
def test_families(family, smallest):
    """A task without examples in a step changes nothing, whatever the family does with no rows."""
    fields = registry.get(family).config.__dataclass_fields__
    more = {"cutoffs": ()} if "cutoffs" in fields else {}
    characters = registry.get(family).tokenizer.kind == "characters"
    tokenizer = CharacterTokenizer() if characters else bf.load_tokenizer(smallest)
    backbone = bf.build(family, "tiny", num_layers=1, vocab_size=tokenizer.vocab_size, **more)
    options = {"language_id": 0} if "language_ids" in backbone.input else {}
    tasks = {
        name: bf.TextClassifier(backbone, tokenizer, ["no", "yes"], pair=False, **options)
        for name in ("one", "other")
    }
    model = bf.MultiTask(tasks)
    data = {name: (TEXTS, ["no", "yes"] * 3) for name in tasks}
    history = model.fit(data, batch_size=2, verbose=0).history
    assert np.isfinite(history["one_loss"]).all()
    assert np.isfinite(history["other_loss"]).all()
    assert all(np.isfinite(weight.numpy()).all() for weight in model.weights)


@pytest.mark.extended
def test_metrics_equal_the_metrics_of_the_task_alone(smallest):
    backbone, tokenizer = bf.load_backbone(smallest), bf.load_tokenizer(smallest)
    labels = bf.MultiLabelClassifier(backbone, tokenizer, ["a", "b", "c"], pair=False)
    model = bf.MultiTask({"labels": labels, "score": bf.TextRegressor(backbone, tokenizer)})
    model.compile(keras.optimizers.SGD(0.0), metrics={"labels": ["accuracy", "bce"]})
    texts, targets = ["a film", "it is", "very"], ["a,b", "", "c"]
    data = {"labels": (texts, targets), "score": (texts, [0.0, 1.0, 2.0])}
    history = model.fit(data, validation_data=data, verbose=0).history
    labels.compile(metrics=["accuracy", "bce"])
    alone = labels.evaluate(texts, targets, return_dict=True, verbose=0)
    for name in ("accuracy", "binary_crossentropy"):
        assert history[f"val_labels_{name}"][0] == pytest.approx(alone[name], rel=1e-5)
