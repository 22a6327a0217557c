"""Numbers and independent labels for texts: answers, learning, and what is refused."""

from decimal import Decimal

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.export.runtime import load
from tests.selection import in_full, only_in

TEXTS = [
    "a good film",
    "a bad movie",
    "the plot is dull",
    "great acting!",
    "it is",
    "",
    "a",
    "very",
]
NUMBERS = [1.0, -2.5, 0.0, 3.25, 1e-3, 4.0, -1.0, 2.0]
WRITTEN = ["1", " -2.5", "0.0", "+3.25", "1e-3", "4.", "-1", "2E0"]
NAMES = ["fun", "sad", "long"]
MATRIX = np.array(
    [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 1]] + [[0, 1, 1]] * 2
)
LISTS = [[name for name, yes in zip(NAMES, row, strict=True) if yes] for row in MATRIX]
JOINED = [" , ".join(names) for names in LISTS]
slices = tf.data.Dataset.from_tensor_slices
QUIET = dict(dropout=0.0, attention_dropout=0.0)


def _logits(task, texts=TEXTS):
    inputs = task.preprocess({"text": tf.constant(texts)})
    return task.head(task.backbone(inputs, training=False), training=False).numpy()


def _served(task, directory):
    return load(task.export(directory)).run(
        "", {"text": np.array([t.encode() for t in TEXTS], object)}
    )


@pytest.fixture(scope="module")
def regressor(smallest):
    task = bf.TextRegressor.from_pretrained(smallest, pair=False, **QUIET)
    task.compile(keras.optimizers.SGD(0.0))
    return task


@pytest.fixture(scope="module")
def several(smallest):
    task = bf.MultiLabelClassifier.from_pretrained(smallest, NAMES, pair=False, **QUIET)
    task.head.weights[0].assign_add(np.random.default_rng(0).normal(0, 1, (32, 3)))
    task.compile(keras.optimizers.SGD(0.0))
    return task


# Numbers ------------------------------------------------------------------------------------------


@only_in("extended", "0")
@pytest.mark.parametrize(
    "data",
    [
        (TEXTS, NUMBERS),
        (TEXTS, WRITTEN),
        (slices((TEXTS, WRITTEN)),),
        (slices((TEXTS, np.array(NUMBERS))).batch(3),),
    ],
    ids=range(4),
)
def test_scores_and_their_metrics(regressor, data):
    scores = regressor.predict(TEXTS)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, _logits(regressor)[:, 0], atol=1e-6)
    found = regressor.evaluate(*data, batch_size=3, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(np.mean((scores - NUMBERS) ** 2), rel=1e-5)
    assert found["pearson"] == pytest.approx(np.corrcoef(scores, NUMBERS)[0, 1], abs=1e-5)
    ranks = np.argsort(np.argsort(scores)), np.argsort(np.argsort(NUMBERS))
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-5)


def test_whole_numbers_in_the_first_batch_of_a_generator(regressor):
    numbers = [1, 2, 2.9, 3.75]
    generator = ((TEXTS[i : i + 2], numbers[i : i + 2]) for i in (0, 2))
    found = np.concatenate([labels for _, labels in regressor.text_batches(generator)])
    np.testing.assert_array_equal(found, np.float32(numbers))
    # As Arrow's decimals are read.
    [(_, found)] = regressor.text_batches(TEXTS[:2], [Decimal("2.5"), Decimal(1)])
    np.testing.assert_array_equal(found, [2.5, 1])


@pytest.mark.full
def test_a_regressor_learns_saves_and_exports(smallest, tmp_path):
    task = bf.TextRegressor.from_pretrained(smallest, **QUIET)
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(slices((TEXTS, WRITTEN)).batch(8).repeat(80), verbose=0)
    scores = task.predict(TEXTS)
    assert np.abs(scores - NUMBERS).max() < 0.5
    task.save(tmp_path / "saved")
    np.testing.assert_array_equal(bf.load(tmp_path / "saved").predict(TEXTS), scores)
    np.testing.assert_allclose(_served(task, tmp_path / "export")["score"], scores, atol=1e-5)


def test_a_stored_head_of_one_score_is_used(smallest):
    stored = bf.TextClassifier.from_pretrained(smallest)
    with pytest.warns(UserWarning, match="has 3 outputs, expected 1"):
        task = bf.TextRegressor.from_pretrained(smallest)
    assert task.head.weights[0].shape == (32, 1) != stored.head.weights[0].shape


@pytest.mark.full
@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (None, "No labels were given"),
        (["1", "two"] * 4, "^The label 'two' is not a finite number"),
        (["1", ""] * 4, "^The label '' is not a finite number"),
        (["1", "nan"] * 4, "^The label 'nan' is not a finite number"),
        (["1", "1e99"] * 4, "^The label '1e99' is not a finite number"),
        (["1", "1.2.3"] * 4, "^The label '1.2.3' is not a finite number"),
        ([1.0, float("inf")] * 4, "^The label 'inf' is not a finite number"),
        ([1.0, None] * 4, "^Row 1 of 'the labels' is missing"),
        ([True] * 8, "^The label 'True' is not a finite number"),
        ([[1.0]] * 8, r"labels must be a vector, one for each text, got shape \(8, 1\)"),
    ],
)
def test_other_numbers_are_refused(regressor, labels, error):
    with pytest.raises(ValueError, match=error):
        regressor.evaluate(TEXTS, labels, verbose=0)


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (["1", "two"] * 4, "^The label 'two' is not a finite number"),
        (np.array([1, np.nan] * 4), "^The label 'nan' is not a finite number"),
        ([True] * 8, "^Each label must be a number or a string of one, got bool"),
        ([[1.0]] * 8, "^labels must be a vector in each batch"),
    ],
    ids=range(4),
)
def test_other_numbers_in_a_data_set_are_refused(regressor, labels, error):
    with pytest.raises(ValueError, match=error):
        regressor.evaluate(slices((TEXTS, labels)), verbose=0)


# Independent labels -------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "data",
    [
        (TEXTS, MATRIX),
        (TEXTS, MATRIX.astype(bool)),
        (TEXTS, MATRIX.tolist()),
        (TEXTS, LISTS),
        (TEXTS, [list(map(str.encode, names)) for names in LISTS]),
        ({"text": TEXTS, "label": LISTS},),
        (TEXTS, JOINED),
        (slices((TEXTS, JOINED)).batch(3),),
        (slices((TEXTS, MATRIX)),),
        (slices((TEXTS, tf.ragged.constant(LISTS))).batch(8),),
    ],
    ids=range(10),
)
def test_labels_in_every_shape(several, data):
    logits = _logits(several)
    chances = 1 / (1 + np.exp(-logits.astype("float64")))
    losses = -np.log(np.where(MATRIX, chances, 1 - chances))
    chosen = chances >= 0.5
    right = (chosen & (MATRIX == 1)).sum()
    found = several.evaluate(*data, batch_size=8, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert found["micro_f1"] == pytest.approx(2 * right / (chosen.sum() + MATRIX.sum()))
    assert 0 < right < MATRIX.sum()


@pytest.mark.extended
def test_the_metric_follows_the_threshold(smallest, tmp_path):
    task = bf.MultiLabelClassifier.from_pretrained(smallest, NAMES, pair=False, **QUIET)
    task.compile(keras.optimizers.SGD(0.0), weighted_metrics=["micro_f1"])
    task.evaluate(TEXTS, MATRIX, verbose=0)
    task.threshold = np.float32(0)
    found = task.evaluate(TEXTS, MATRIX, verbose=0, return_dict=True)["micro_f1"]
    assert found == pytest.approx(2 * MATRIX.sum() / (MATRIX.size + MATRIX.sum()))
    task.save(tmp_path / "task")
    assert bf.load(tmp_path / "task").threshold == 0


@pytest.mark.extended
def test_chosen_labels(several, smallest):
    answers = several.predict(TEXTS)
    scores = 1 / (1 + np.exp(-_logits(several)))
    np.testing.assert_allclose([a["scores"] for a in answers], scores, atol=1e-6)
    assert [a["labels"] for a in answers] == [
        [name for name, score in zip(NAMES, row, strict=True) if score >= 0.5] for row in scores
    ]
    backbone, tokenizer = several.backbone, several.tokenizer
    all_of_them = bf.MultiLabelClassifier(backbone, tokenizer, NAMES, threshold=0.0)
    assert all_of_them.predict(TEXTS)[0]["labels"] == NAMES
    with pytest.raises(ValueError, match=r"threshold must be from 0 to 1, got 1\.5"):
        bf.MultiLabelClassifier(backbone, tokenizer, NAMES, threshold=1.5)
    with pytest.raises(ValueError, match=r"threshold must be from 0 to 1, got -1\.0"):
        all_of_them.threshold = -1
    assert all_of_them.threshold == 0.0


@pytest.mark.full
def test_labels_are_learnt_saved_and_exported(smallest, tmp_path):
    task = bf.MultiLabelClassifier.from_pretrained(smallest, NAMES, **QUIET)
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(slices((TEXTS, JOINED)).batch(8).repeat(50), verbose=0)
    answers = task.predict(TEXTS)
    assert [a["labels"] for a in answers] == LISTS
    scores = [a["scores"] for a in answers]
    task.threshold = 0.25
    task.save(tmp_path / "saved")
    again = bf.load(tmp_path / "saved")
    assert (again.labels, again.threshold) == (NAMES, 0.25)
    np.testing.assert_array_equal([a["scores"] for a in again.predict(TEXTS)], scores)
    found = _served(again, tmp_path / "export")
    np.testing.assert_allclose(found["scores"], scores, atol=1e-5)
    np.testing.assert_array_equal(found["chosen"], found["scores"] >= 0.25)


@only_in("extended", "2")
@pytest.mark.parametrize(
    ("data", "error"),
    [
        ((TEXTS,), "No labels were given"),
        ((TEXTS, [["fun"], ["fan"]] * 4), "^The label 'fan' is not one of: fun, sad, long"),
        ((TEXTS, ["fun,fan", ""] * 4), "^The label 'fan' is not one of: fun, sad, long"),
        ((slices((TEXTS, ["fun,fan", ""] * 4)),), "^The label 'fan' is not one of"),
        ((TEXTS, MATRIX[:, :2]), "labels must be a matrix of 0 and 1"),
        ((TEXTS, MATRIX + 1), "labels must be a matrix of 0 and 1"),
        ((TEXTS, [[1], [1, 0]] * 4), "labels must be a matrix of 0 and 1"),
        ((TEXTS, [0] * 8), "labels must be a matrix of 0 and 1"),
        ((slices((TEXTS, [0] * 8)),), "labels must be a matrix of 0 and 1"),
        ((slices((TEXTS, MATRIX[:, :2])),), "labels must be a matrix of 0 and 1"),
        ((TEXTS, LISTS[:-1]), r"differ in number: \[7, 8\]"),
    ],
    ids=range(11),
)
def test_other_labels_are_refused(several, data, error):
    with pytest.raises(ValueError, match=error):
        several.evaluate(*data, verbose=0)


@pytest.mark.full
@pytest.mark.parametrize("weights", in_full([{"yes": 3.0}, {1: 3, "no": 1.0}], [{"yes": 3.0}]))
def test_labels_have_weights(smallest, weights):
    task = bf.TextClassifier.from_pretrained(smallest, ["no", "yes"], **QUIET)
    task.compile(keras.optimizers.SGD(0.0))
    labels = ["yes", "no", "yes", "no", "yes", "yes", "no", "no"]
    options = dict(class_weight=weights, batch_size=8, verbose=0)
    loss = task.fit(TEXTS, labels, **options).history["loss"][0]
    scores = np.array([a["scores"] for a in task.predict(TEXTS)])
    places = [int(label == "yes") for label in labels]
    losses = -np.log(scores[range(8), places]) * np.array([1, 3])[places]
    assert loss == pytest.approx(losses.mean(), rel=1e-5)
    with pytest.raises(
        ValueError, match="The label of class_weight 'maybe' is not one of: no, yes"
    ):
        task.fit(TEXTS, labels, class_weight={"maybe": 2.0}, verbose=0)
    with pytest.raises(ValueError, match="The label of class_weight '2' is not one of: 0, 1"):
        task.fit(TEXTS, labels, class_weight={2: 2.0}, verbose=0)


@pytest.mark.full
def test_independent_labels_have_none(several):
    with pytest.raises(ValueError, match="class_weight is for one label of each example"):
        several.fit(TEXTS, JOINED, class_weight={"fun": 2.0}, verbose=0)


@pytest.mark.full
def test_metrics_by_name(smallest):
    task = bf.TextClassifier.from_pretrained(smallest, ["no", "yes"], **QUIET)
    task.compile(metrics=["accuracy", "f1", "matthews", "precision", "AUC"])
    labels = ["yes", "no", "yes", "no", "yes", "yes", "no", "no"]
    found = task.evaluate(TEXTS, labels, verbose=0, return_dict=True)
    assert found.keys() == {"loss", "accuracy", "f1", "matthews", "precision", "auc"}
    given = np.array([a["label"] == "yes" for a in task.predict(TEXTS)])
    true = np.array(labels) == "yes"
    assert found["accuracy"] == pytest.approx((given == true).mean())
    assert found["f1"] == pytest.approx(2 * (given & true).sum() / (given.sum() + true.sum()))
    assert found["precision"] == pytest.approx((given & true).sum() / given.sum())
    assert 0 <= found["auc"] <= 1


@pytest.mark.parametrize("form", [list, lambda metrics: {"sequence_head": metrics}])
def test_metrics_of_independent_labels(several, form):
    metrics = ["accuracy", "bce", keras.metrics.AUC(multi_label=True, from_logits=True)]
    several.compile(metrics=form(metrics))
    found = several.evaluate(TEXTS, JOINED, verbose=0, return_dict=True)
    scores = np.stack([answer["scores"] for answer in several.predict(TEXTS)])
    assert found["accuracy"] == pytest.approx(((scores > 0.5) == MATRIX).mean())
    assert found["binary_crossentropy"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["loss"] == pytest.approx(-np.log(np.where(MATRIX, scores, 1 - scores)).mean())
    several.compile(keras.optimizers.SGD(0.0))


@pytest.mark.parametrize(
    ("metric", "error"),
    [
        (keras.metrics.BinaryAccuracy(), "must have threshold=0.0, which is a probability of 0.5"),
        (keras.metrics.F1Score(threshold=0.5), 'F1Score does not fit .*; use "micro_f1"'),
        ("f1_score", 'F1Score does not fit .*; use "micro_f1"'),
        (keras.metrics.F1Score, 'F1Score does not fit .*; use "micro_f1"'),
        ("FBetaScore", 'FBetaScore does not fit .*; use "micro_f1"'),
        (keras.metrics.BinaryCrossentropy(), "BinaryCrossentropy must have from_logits=True"),
        (keras.metrics.AUC(multi_label=True), "AUC must have from_logits=True"),
        (
            keras.metrics.Precision(),
            'Precision does not fit .* MultiLabelClassifier; use "micro_f1"',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_metrics_that_take_probabilities(several, metric, error):
    with pytest.raises(ValueError, match=error):
        several.compile(metrics=[metric])


@pytest.mark.parametrize(
    ("metric", "other"),
    [
        ("binary_accuracy", "accuracy"),
        (keras.metrics.AUC(from_logits=True), "auc"),
        (keras.metrics.F1Score(average="macro"), "f1"),
    ],
)
def test_metrics_that_take_one_score(smallest, metric, other):
    task = bf.TextClassifier.from_pretrained(smallest, ["no", "yes"], **QUIET)
    with pytest.raises(ValueError, match=f'logits of a TextClassifier; use "{other}"'):
        task.compile(metrics=[metric])


@pytest.mark.parametrize(
    "metric",
    ["categorical_accuracy", keras.metrics.CategoricalAccuracy(), "TopKCategoricalAccuracy"],
    ids=lambda value: type(value).__name__,
)
def test_metrics_of_one_hot_labels(smallest, metric):
    task = bf.TextClassifier.from_pretrained(smallest, ["no", "yes"], **QUIET)
    with pytest.raises(ValueError, match="CategoricalAccuracy does not fit the labels and logits"):
        task.compile(metrics=[metric])
