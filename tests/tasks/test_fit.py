"""Tasks learn from every shape of data, and say what is wrong with the others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
import bertfam_tf.data
from bertfam_tf.data.targets import Name
from tests.selection import in_full, only_in

TEXTS = ["a good film", "a bad movie", "the plot is dull", "great acting!", "it is", "very bad"]
NAMES = ["positive", "negative", "negative", "positive", "neutral", "negative"]
NUMBERS = [2, 0, 0, 2, 1, 0]
PAIRS = TEXTS[::-1]
WEIGHTS = [1.0, 0.5, 2.0, 0.0, 1.0, 3.0]
slices = tf.data.Dataset.from_tensor_slices


def _generator(labels):
    signature = (tf.TensorSpec([], tf.string), tf.TensorSpec([], labels.dtype))
    return tf.data.Dataset.from_generator(
        lambda: zip(TEXTS, labels.numpy(), strict=True), output_signature=signature
    )


def _scores(task, pairs=None):
    """The scores of TEXTS without Keras' loop around them."""
    features = {"text": TEXTS} if pairs is None else {"text": TEXTS, "text_pair": pairs}
    return task.answer({k: tf.constant(v) for k, v in features.items()})["scores"].numpy()


# Shapes of data -------------------------------------------------------------------------------

SINGLE = {
    "lists": (TEXTS, NAMES),
    "numbers": (TEXTS, NUMBERS),
    "arrays": (np.array(TEXTS), np.array(NAMES)),
    "arrays of numbers": (np.array(TEXTS), np.array(NUMBERS, np.uint8)),
    "dict": ({"text": TEXTS}, NAMES),
    "dict with label": ({"text": TEXTS, "label": NAMES},),
    "rows": (slices((TEXTS, NAMES)),),
    "batches": (slices((TEXTS, NAMES)).batch(3),),
    "rows of numbers": (slices((TEXTS, NUMBERS)),),
    "batches of int64": (slices((TEXTS, np.array(NUMBERS, np.int64))).batch(6),),
    "rows of dicts": (slices({"text": TEXTS, "label": NAMES}),),
    "rows of dict and label": (slices(({"text": TEXTS}, NAMES)),),
    "generator": (_generator(tf.constant(NAMES)),),
}


@pytest.mark.full
@pytest.mark.parametrize("shape", SINGLE)
def test_evaluate_reads_every_shape_alike(reader, shape):
    scores = _scores(reader)
    chances = scores[range(6), NUMBERS]
    right = scores.argmax(-1) == NUMBERS
    found = reader.evaluate(*SINGLE[shape], verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(np.mean(right))
    assert found["loss"] == pytest.approx(-np.log(chances).mean(), rel=1e-5)


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(2 * index, 2 * index + 2)
        return TEXTS[rows], NAMES[rows]


@pytest.mark.full
def test_generators(smallest):
    """A ``PyDataset``, and a generator without end, as Keras' guides have them."""

    def forever():
        while True:
            yield TEXTS[:3], NAMES[:3]
            yield TEXTS[3:], NAMES[3:]

    task = bf.TextClassifier.from_pretrained(smallest, sorted(set(NAMES)), dropout=0.0)
    scores = _scores(task)
    expected = -np.log(scores[range(6), NUMBERS]).mean()
    assert task.evaluate(Sequence(), verbose=0)[0] == pytest.approx(expected, rel=1e-5)
    assert task.evaluate(forever(), steps=2, verbose=0)[0] == pytest.approx(expected, rel=1e-5)
    texts = (batch for batch in [TEXTS[:4], TEXTS[4:]])
    np.testing.assert_allclose([x["scores"] for x in task.predict(texts)], scores, atol=1e-6)
    history = task.fit(
        forever(),
        epochs=3,
        steps_per_epoch=2,
        validation_data=forever(),
        validation_steps=2,
        verbose=0,
    )
    assert len(history.history["val_loss"]) == 3
    assert int(task.optimizer.iterations) == 6
    assert task.optimizer._learning_rate.total_steps == 6
    task.fit(Sequence(), epochs=2, verbose=0)  # of a new optimizer, for two epochs of three batches
    assert int(task.optimizer.iterations) == 6


@only_in("extended", "list")
@pytest.mark.parametrize("weighted", ["list", "column", "data set", "data set of columns"])
def test_weights(reader, weighted):
    chances = _scores(reader)[range(6), NUMBERS]
    weights = np.array(WEIGHTS)[:, None] if "column" in weighted else WEIGHTS
    if "data set" in weighted:
        found = reader.evaluate(slices((TEXTS, NAMES, weights)), verbose=0)
    else:
        found = reader.evaluate(TEXTS, NAMES, sample_weight=weights, verbose=0)
    # Keras' mean is over rows, not over weights.
    assert found[0] == pytest.approx(np.mean(-np.log(chances) * WEIGHTS), rel=1e-5)


@pytest.mark.parametrize("weights", [np.ones((6, 2)), [[1.0], [1.0, 2.0], *[[1.0]] * 4], "abcdef"])
def test_weights_of_another_shape(reader, weights):
    with pytest.raises(ValueError, match="sample_weight must be one number for each example, got"):
        reader.fit(TEXTS, NAMES, sample_weight=weights, verbose=0)


@pytest.mark.full
@pytest.mark.parametrize("shape", ["tuple", "dict", "rows", "rows of dicts"])
def test_pairs(smallest, shape):
    task = bf.TextClassifier.from_pretrained(smallest)
    data = {
        "tuple": ((TEXTS, PAIRS), NAMES),
        "dict": ({"text": TEXTS, "text_pair": PAIRS}, NAMES),
        "rows": (slices(((TEXTS, PAIRS), NAMES)),),
        "rows of dicts": (slices({"text": TEXTS, "text_pair": PAIRS, "label": NAMES}).batch(2),),
    }[shape]
    loss = task.evaluate(*data, verbose=0)[0]
    assert task.pair
    chances = _scores(task, PAIRS)[range(6), NUMBERS]
    assert loss == pytest.approx(-np.log(chances).mean(), rel=1e-5)
    with pytest.raises(ValueError, match="takes pairs; the data has no 'text_pair'"):
        task.predict(TEXTS)


@pytest.mark.parametrize("verb", ["fit", "evaluate", "validation", "predict"])
def test_a_pair_for_a_task_of_single_texts(reader, verb):
    pairs = ((TEXTS, PAIRS), NAMES)
    call = {
        "fit": lambda: reader.fit(*pairs, verbose=0),
        "evaluate": lambda: reader.evaluate(*pairs, verbose=0),
        "validation": lambda: reader.fit(TEXTS, NAMES, validation_data=pairs, verbose=0),
        "predict": lambda: reader.predict(pairs[0]),
    }[verb]
    with pytest.raises(ValueError, match="takes single texts; the data has a 'text_pair'"):
        call()


# Learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", in_full(["lists", "generator"], ["lists"]))
def test_fit_without_any_set_up(classifier, shape):
    before = classifier.evaluate(TEXTS, NAMES, verbose=0, return_dict=True)
    history = classifier.fit(
        *SINGLE[shape], epochs=4, batch_size=2, verbose=0, validation_data=(TEXTS, NUMBERS)
    ).history
    assert history.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    after = classifier.evaluate(TEXTS, NAMES, verbose=0, return_dict=True)
    assert history["val_loss"][-1] == pytest.approx(after["loss"], rel=1e-4)
    assert after["loss"] < before["loss"]
    # Without a number of steps, the rate is constant.
    schedule = classifier.optimizer._learning_rate
    assert getattr(schedule, "total_steps", None) == {"lists": 12, "generator": None}[shape]
    assert classifier.optimizer.weight_decay == 0.01


@pytest.mark.extended
def test_a_call_after_fit_has_no_dropout(smallest):
    task = bf.TextClassifier.from_pretrained(smallest, dropout=0.5)
    task.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    task.fit(TEXTS, NAMES, verbose=0)
    inputs = task.preprocess({"text": tf.constant(TEXTS)})
    np.testing.assert_array_equal(task(inputs), task(inputs, training=False))


@pytest.mark.full
def test_compile_is_respected(classifier):
    optimizer = keras.optimizers.SGD(0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    classifier.compile(optimizer, loss, metrics=["sparse_categorical_accuracy"])
    before = [w.numpy() for w in classifier.weights]
    history = classifier.fit(TEXTS, NAMES, batch_size=6, verbose=0).history
    assert classifier.optimizer is optimizer
    assert history.keys() == {"loss", "sparse_categorical_accuracy"}
    chances = _scores(classifier)[range(6), NUMBERS]
    assert history["loss"][0] == pytest.approx(-np.log(chances).sum(), rel=1e-5)
    for variable, value in zip(classifier.weights, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
    ],
)
def test_a_cross_entropy_by_name_reads_logits(classifier, loss):
    expected = classifier.evaluate(TEXTS, NAMES, verbose=0)[0]
    classifier.compile("sgd", loss)
    assert isinstance(classifier.loss, keras.losses.SparseCategoricalCrossentropy)
    assert classifier.evaluate(TEXTS, NAMES, verbose=0)[0] == pytest.approx(expected, rel=1e-5)


def test_losses_that_read_no_logits(classifier):
    with pytest.raises(ValueError, match=r"SparseCategoricalCrossentropy must have from_logits"):
        classifier.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    classifier.compile("sgd", lambda y_true, y_pred: keras.ops.sum(y_pred))


def _task(name, reader, *options):
    return getattr(bf, name)(reader.backbone, reader.tokenizer, *options)


@pytest.mark.parametrize(
    ("name", "options", "losses"),
    [
        ("TextClassifier", [3], ["mse", "categorical_crossentropy", keras.losses.Hinge()]),
        ("MultipleChoice", [2], [keras.losses.CategoricalCrossentropy, "kl_divergence"]),
        ("TokenTagger", [["O", "B-X"]], [keras.losses.mean_squared_error]),
        ("MultiLabelClassifier", [3], ["sparse_categorical_crossentropy"]),
        ("TextRegressor", [], ["sparse_categorical_crossentropy", "categorical_crossentropy"]),
        ("SpanQA", [], ["sparse_categorical_crossentropy"]),
        ("MaskedLM", [], ["sparse_categorical_crossentropy"]),
    ],
)
def test_losses_that_do_not_fit_the_labels(reader, name, options, losses):
    task = _task(name, reader, *options)
    for loss in losses:
        with pytest.raises(ValueError, match=f"does not fit the labels and logits of a {name}; "):
            task.compile("sgd", loss)


@pytest.mark.parametrize(
    ("name", "options", "metrics"),
    [
        ("MultipleChoice", [2], ["categorical_accuracy", "mse", keras.metrics.F1Score()]),
        ("TokenTagger", [["O", "B-X"]], ["categorical_accuracy", "sparse_categorical_accuracy"]),
        ("MultiLabelClassifier", [3], ["categorical_accuracy", keras.metrics.TruePositives()]),
        ("TextRegressor", [], ["accuracy", "categorical_accuracy"]),
        ("Reranker", [], ["accuracy", "acc"]),
        ("SpanQA", [], ["categorical_accuracy", keras.metrics.mean_squared_error]),
        ("MaskedLM", [], ["accuracy"]),
    ],
)
def test_metrics_that_do_not_fit_the_labels(reader, name, options, metrics):
    task = _task(name, reader, *options)
    for metric in metrics:
        with pytest.raises(ValueError, match=f"does not fit the labels and logits of a {name}; "):
            task.compile("sgd", metrics=[metric])


def test_losses_and_metrics_of_users_are_never_refused(reader):
    class Soft(keras.losses.CategoricalCrossentropy):
        pass

    task = _task("TextClassifier", reader, 3)
    task.compile("sgd", Soft(from_logits=True), metrics=[lambda y_true, y_pred: 0.0])


def test_metrics_of_decisions_compare_logits_with_0(reader):
    task = _task("MultiLabelClassifier", reader, ["a", "b"])
    right = keras.metrics.TruePositives(thresholds=0.0, name="right")
    metrics = [right, keras.metrics.Precision(thresholds=0.0, name="precise")]
    task.compile("sgd", metrics=metrics)
    scores = task.evaluate(TEXTS, ["a,b"] * 6, verbose=0, return_dict=True)
    decisions = np.array([answer["scores"] for answer in task.predict(TEXTS)]) > 0.5
    assert scores["right"] == decisions.sum() > 0
    assert scores["precise"] == 1
    with pytest.raises(ValueError, match=r"keras.metrics.Precision does not fit"):
        _task("TextClassifier", reader, 2).compile(metrics=metrics[1:])


def test_compile_forgets_the_loss_and_metrics_of_an_earlier_call(classifier):
    expected = classifier.evaluate(TEXTS, NAMES, verbose=0, return_dict=True)
    classifier.compile("sgd", lambda y_true, y_pred: keras.ops.sum(y_pred), metrics=["f1"])
    classifier.compile("sgd")
    assert classifier.evaluate(TEXTS, NAMES, verbose=0, return_dict=True) == expected
    classifier.compile("sgd", metrics=None)
    assert classifier.evaluate(TEXTS, NAMES, verbose=0, return_dict=True).keys() == {"loss"}


def test_a_compiled_task_is_cloned(classifier):
    classifier.compile("sgd", "sparse_categorical_crossentropy")
    assert keras.models.clone_model(classifier).loss.from_logits


@pytest.mark.extended
@pytest.mark.parametrize("own", [True, False])
def test_the_loss_of_a_subclass_is_reported(reader, own):
    class Doubled(bf.TextClassifier):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            if own:
                cross_entropy = keras.losses.sparse_categorical_crossentropy
                return 2 * keras.ops.mean(cross_entropy(y, y_pred, from_logits=True))
            return 2 * super().compute_loss(x, y, y_pred, sample_weight, training)

    task = Doubled(reader.backbone, reader.tokenizer, sorted(set(NAMES)))
    task.compile(run_eagerly=True)
    loss, accuracy = task.evaluate(TEXTS, NAMES, batch_size=3, verbose=0)
    scores = _scores(task)
    assert loss == pytest.approx(-2 * np.log(scores[range(6), NUMBERS]).mean(), rel=1e-5)
    assert accuracy == pytest.approx(np.mean(scores.argmax(-1) == NUMBERS))


@pytest.mark.extended
@pytest.mark.parametrize("added", [0.0, 1.0])
def test_a_subclass_with_the_training_step_of_keras_guides(classifier, added):
    class Guide(bf.TextClassifier):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=y_pred) + added
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

    task = Guide(classifier.backbone, classifier.tokenizer, sorted(set(NAMES)))
    task.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    data = dict(validation_data=(TEXTS, NAMES), batch_size=3, shuffle=False, verbose=0)
    history = {name: values[0] for name, values in task.fit(TEXTS, NAMES, **data).history.items()}
    assert history["loss"] == pytest.approx(history["val_loss"] + added, rel=1e-5)
    assert history["accuracy"] == history["val_accuracy"]


@pytest.mark.full
def test_compile_with_nothing_takes_the_defaults(classifier):
    classifier.compile()
    assert isinstance(classifier.optimizer, keras.optimizers.AdamW)
    assert not classifier.jit_compile
    assert len(classifier.evaluate(TEXTS, NAMES, verbose=0)) == 2


@pytest.mark.extended
def test_callbacks(classifier, tmp_path):
    # A rate at which a small model goes astray.
    classifier.compile(keras.optimizers.SGD(3.0))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    best = keras.callbacks.ModelCheckpoint(
        tmp_path / "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
    )
    history = classifier.fit(
        *(TEXTS, NAMES),
        epochs=12,
        validation_data=(TEXTS, NAMES[::-1]),
        callbacks=[stop, best],
        shuffle=False,
        verbose=0,
    ).history
    assert len(history["val_loss"]) < 12
    restored = classifier.predict(TEXTS)
    classifier.load_weights(tmp_path / "best.weights.h5")
    for found, wanted in zip(classifier.predict(TEXTS), restored, strict=True):
        np.testing.assert_array_equal(found["scores"], wanted["scores"])
    loss = classifier.evaluate(TEXTS, NAMES[::-1], verbose=0)[0]
    assert loss == pytest.approx(min(history["val_loss"]), rel=1e-5)


@pytest.mark.full
def test_an_embedder_has_no_loss_of_its_own(embedder):
    for verb in (embedder.fit, embedder.evaluate):
        with pytest.raises(ValueError, match=r"TextEmbedder has no default loss; call compile"):
            verb(TEXTS, np.zeros((6, 32), "float32"), verbose=0)


@pytest.mark.full
def test_an_embedder_learns_what_it_is_compiled_for(smallest):
    task = bf.TextEmbedder.from_pretrained(smallest)
    task.compile(keras.optimizers.Adam(1e-2), "mse")
    target = np.eye(32, dtype="float32")[NUMBERS]
    losses = task.fit(TEXTS, target, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


# As Keras takes them --------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("weights", [(), (np.array([1.0, 0, 0, 0, 0, 0]),)])
@pytest.mark.parametrize(
    "texts", [TEXTS, np.array(TEXTS), {"text": TEXTS}], ids=["list", "array", "dict"]
)
def test_validation_data_in_a_list(reader, texts, weights):
    expected = reader.evaluate(
        TEXTS, NAMES, sample_weight=weights[0] if weights else None, verbose=0
    )
    history = reader.fit(TEXTS, NAMES, validation_data=[texts, NAMES, *weights], verbose=0).history
    assert history["val_loss"] == pytest.approx(expected[:1])


@pytest.mark.extended
def test_validation_data_that_are_rows(reader):
    row = {"text": "a", "label": "neutral"}
    for rows in (list(zip(TEXTS, NAMES, strict=True))[:2], [row] * 2, [row, row | {"id": 1}]):
        assert "val_loss" in reader.fit(TEXTS, NAMES, validation_data=rows, verbose=0).history


@pytest.mark.extended
def test_labels_in_a_dict(reader):
    expected = reader.evaluate(TEXTS, NAMES, verbose=0)
    named = {"label": NAMES}
    rows = tf.data.Dataset.from_tensor_slices((TEXTS, named))
    for data in ((TEXTS, named), (rows,), (rows.batch(6),)):
        assert reader.evaluate(*data, verbose=0) == pytest.approx(expected)
    others = tf.data.Dataset.from_tensor_slices((TEXTS, {"a": NAMES, "b": NAMES}))
    for data in ((TEXTS, {"a": NAMES, "b": NAMES}), (others,)):
        with pytest.raises(
            ValueError, match=r"a dict of one with the name 'label', got a dict with"
        ):
            reader.evaluate(*data, verbose=0)


# Mistakes -------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("verb", ["fit", "evaluate", "validation"])
@pytest.mark.parametrize("kind", ["list", "data set"])
@pytest.mark.parametrize(
    ("wrong", "known"), [("neutrl", "negative, neutral, positive"), (3, "0, 1, 2"), (-1, "0, 1, 2")]
)
def test_an_unknown_label_is_named(reader, verb, kind, wrong, known):
    labels = [*(NAMES if isinstance(wrong, str) else NUMBERS)[:-1], wrong]
    data = (TEXTS, labels) if kind == "list" else (slices((TEXTS, labels)),)
    validation = data if kind == "list" else data[0]
    call = {
        "fit": lambda: reader.fit(*data, verbose=0),
        "evaluate": lambda: reader.evaluate(*data, verbose=0),
        "validation": lambda: reader.fit(TEXTS, NAMES, validation_data=validation, verbose=0),
    }[verb]
    with pytest.raises(ValueError, match="is not one of") as error:
        call()
    assert str(error.value) == f"The label '{wrong}' is not one of: {known}."


@pytest.mark.full
@pytest.mark.parametrize("verb", ["fit", "evaluate"])
@pytest.mark.parametrize(
    ("data", "error"),
    [
        ((TEXTS,), "No labels were given with the texts"),
        ((slices(TEXTS),), "No labels were given with the texts"),
        ((TEXTS, [0.0] * 6), "labels must be names or indices, got the float64 0.0"),
        ((TEXTS, ["neutral", None] * 3), "Row 1 of 'the labels' is missing"),
        ((TEXTS, [True] * 6), "The label 'True' is not one of"),
        ((TEXTS, np.eye(3, dtype=int)[NUMBERS]), r"labels must be a vector.*\(6, 3\)"),
        ((slices((TEXTS, np.eye(3)[NUMBERS])),), r"labels must be a vector.*\(None, 3\)"),
        ((slices((TEXTS, [0.0] * 6)),), "^labels must be strings or integers, got float32"),
        ((slices((TEXTS, [True] * 6)),), "^labels must be strings or integers, got bool"),
        ((slices(([TEXTS], ["neutral"])),), r"labels must be a vector in each batch"),
        (([], []), "There is no text"),
        ((slices((TEXTS, NAMES)).take(0),), "There is no text"),
        ((slices((TEXTS, NAMES)).filter(lambda *_: False),), "There is no text"),
        ((TEXTS, NAMES[:-1]), r"differ in number: \[5, 6\]"),
        ((NUMBERS, NAMES), "Example 0 of 'text' must be a string, got 2"),
    ],
    ids=range(15),
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_other_data_is_refused(reader, verb, data, error):
    with pytest.raises(ValueError, match=error):
        getattr(reader, verb)(*data, verbose=0)


@pytest.mark.extended
def test_a_file_that_changes_while_it_is_read_is_named(reader, tmp_path):
    file = tmp_path / "rows.tsv"
    file.write_text("text\tlabel\na\tneutral\nb\tneutral\n")
    data = bf.data.read_rows(file, target=Name()).dataset()
    file.write_text("text\tlabel\na\tneutral\nbroken\n")
    for verb in (reader.fit, reader.evaluate):
        with pytest.raises(ValueError, match=r"^.*rows\.tsv has 1 valid rows less"):
            verb(data, verbose=0)
    with pytest.raises(ValueError, match=r"^.*rows\.tsv has 1 valid rows less"):
        reader.predict(data)


@pytest.mark.parametrize("verb", ["fit", "evaluate", "predict"])
def test_an_unknown_argument_is_an_error_that_names_those_there_are(reader, verb):
    error = rf"^{verb}\(\) got an unexpected keyword argument 'batchsize'\. .* mean 'batch_size'"
    with pytest.raises(TypeError, match=error):
        getattr(reader, verb)(TEXTS, batchsize=2)


def test_an_unknown_metric_is_an_error_that_names_the_most_similar(classifier):
    with pytest.raises(ValueError, match=r"Unknown metric 'acuracy'\. Did you mean 'accuracy'\?"):
        classifier.compile("sgd", metrics=["acuracy"])


# One batch ------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_step_on_one_batch_is_that_of_fit(classifier, tmp_path):
    classifier.save(tmp_path / "task")
    ours, theirs = (bf.load(tmp_path / "task") for _ in range(2))
    for task in (ours, theirs):
        task.compile(keras.optimizers.SGD(0.1), metrics=["accuracy"])
    loss = ours.train_on_batch(TEXTS, NAMES, class_weight={"neutral": 2.0}, return_dict=True)
    found = theirs.fit(TEXTS, NAMES, class_weight={"neutral": 2.0}, batch_size=6, verbose=0)
    assert loss == pytest.approx({name: values[0] for name, values in found.history.items()})
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    ours.reset_metrics()
    tested = ours.test_on_batch(TEXTS, NAMES, np.array(WEIGHTS), return_dict=True)
    scored = theirs.evaluate(
        TEXTS, NAMES, sample_weight=np.array(WEIGHTS), verbose=0, return_dict=True
    )
    assert tested == pytest.approx(scored, abs=1e-6)
    assert [x["label"] for x in ours.predict_on_batch(TEXTS)] == [
        x["label"] for x in theirs.predict(TEXTS)
    ]


def test_one_batch_is_no_data_set(reader):
    with pytest.raises(ValueError, match="texts of one batch, got a"):
        reader.train_on_batch(slices((TEXTS, NAMES)).batch(2))
    with pytest.raises(ValueError, match="texts of one batch, got a"):
        reader.predict_on_batch(slices(TEXTS).batch(2))
    with pytest.raises(ValueError, match="'maybe' is not one of"):
        reader.test_on_batch(["a"], ["maybe"])
    regressor = bf.TextRegressor(reader.backbone, reader.tokenizer)
    with pytest.raises(ValueError, match=r"^The label 'maybe' is not a finite number"):
        regressor.train_on_batch(["a"], ["maybe"])


@pytest.mark.extended
def test_one_batch_of_packed_ids(reader):
    texts = {name: np.array(x) for name, x in _packed(reader).items()}
    scores = keras.ops.softmax(reader.predict_on_batch(texts))
    expected = [answer["scores"] for answer in reader.predict_on_batch(TEXTS)]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def _packed(task):
    return next(iter(task.text_batches(TEXTS, NAMES)))[0]
