"""Few examples: pairs, the logistic regression, and a task like the others."""

import json
import logging

import numpy as np
import pytest
import tensorflow as tf
import yaml

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.export.runtime.loader import load
from bertfam_tf.export.tflite import interpreter
from bertfam_tf.sources import CheckpointError
from bertfam_tf.tasks.few_shot_classifier import Examples
from bertfam_tf.tasks.logistic_regression import fit_logistic_regression
from tests import published

LABELS = ["bad", "good"]
TEXTS = ["a good film", "the good cast", "bad", "a bad plot", "great", "dull"]
GIVEN = ["good", "good", "bad", "bad", "good", "bad"]
FIT = {"epochs": 2, "regularization": 0.01, "verbose": 0}
NEW = ["good plot", "the bad film", "", "good 🙂"]


def _new(path):
    """A classifier on random weights, which need a high rate and no dropout."""
    clf = bf.FewShotClassifier.from_pretrained(path, LABELS, dropout=0.0)
    clf.compile(bf.optimizers.adamw(3e-3))
    return clf


@pytest.fixture(scope="module")
def fitted(smallest):
    """A classifier after ``fit``."""
    clf = _new(smallest)
    return clf, clf.fit(TEXTS, GIVEN, validation_data=(TEXTS, GIVEN), **FIT)


def _check_head(clf, answers):
    """The head is the logistic regression on the vectors of the task's own embedder."""
    vectors = clf.embedder.predict(TEXTS)
    layer = clf.get_layer("classifier")
    logits = vectors @ layer.kernel.numpy() + layer.bias.numpy()
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose([a["scores"] for a in answers], chances, atol=1e-5)


@pytest.mark.extended
def test_a_frozen_embedder(smallest):
    """Without epochs of pairs, ``fit`` is the logistic regression alone."""
    clf = _new(smallest)
    clf.fit(TEXTS, GIVEN, **FIT | {"epochs": 0})
    answers = clf.predict(TEXTS)
    assert [answer["label"] for answer in answers] == GIVEN
    _check_head(clf, answers)
    held_out = TEXTS, GIVEN, [0.0] * 6
    history = clf.fit(TEXTS, GIVEN, validation_data=held_out, **FIT | {"epochs": 0}).history
    assert history["val_loss"] == [0.0]


@pytest.mark.extended
def test_a_change_of_the_language():
    """The embedder, which has graphs of its own, follows: ``fit`` reads its vectors."""
    tokenizer = published.tokenizer("xlm")
    shape = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, num_languages=2)
    backbone = bf.build("xlm", "tiny", vocab_size=tokenizer.vocab_size, **shape)
    for i, variable in enumerate(backbone.weights):
        variable.assign_add(np.random.default_rng(i).normal(0, 0.3, variable.shape))
    clf = bf.FewShotClassifier(backbone, tokenizer, LABELS, language_id=0)
    clf.fit(TEXTS, GIVEN, **FIT | {"epochs": 0})
    before = clf.embedder.predict(TEXTS)
    clf.language = 1
    clf.fit(TEXTS, GIVEN, **FIT | {"epochs": 0})
    _check_head(clf, clf.predict(TEXTS))
    assert np.abs(clf.embedder.predict(TEXTS) - before).max() > 0.01
    assert clf.embedder.options.language_id == clf.options.language_id == 1


@pytest.mark.extended
def test_fit(fitted):
    """Labels of the examples are learnt; the history has pairs' losses and the task's scores."""
    clf, history = fitted
    answers = clf.predict(TEXTS)
    assert [answer["label"] for answer in answers] == GIVEN
    assert history.history["val_accuracy"] == [1.0]
    first, last = history.history["loss"]
    assert last < first
    assert clf.evaluate(TEXTS, GIVEN, return_dict=True, verbose=0)["accuracy"] == 1.0
    _check_head(clf, answers)


@pytest.mark.extended
def test_the_embedder_is_trained_by_the_seed(fitted, smallest):
    clf, _ = fitted
    frozen = _new(smallest)
    before = frozen.embedder.predict(TEXTS)
    frozen.fit(TEXTS, GIVEN, epochs=0, verbose=0)
    np.testing.assert_array_equal(frozen.embedder.predict(TEXTS), before)
    assert np.abs(clf.embedder.predict(TEXTS) - before).max() > 1e-3
    weights = []
    for seed in (0, 1):
        again = _new(smallest)
        again.fit(TEXTS, GIVEN, seed=seed, **FIT)
        weights.append([w.numpy() for w in again.weights if "seed" not in w.path])
    expected = [w.numpy() for w in clf.weights if "seed" not in w.path]
    for a, b in zip(weights[0], expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(weights[1], expected, strict=True))


@pytest.mark.extended
def test_similar_examples_come_closer(fitted, smallest):
    """Cosines of a label's examples exceed those of others by more than before."""

    def margin(embedder):
        vectors = embedder.predict(TEXTS)
        same = np.array(GIVEN)[:, None] == np.array(GIVEN)
        cosines = vectors @ vectors.T
        return cosines[same & ~np.eye(len(TEXTS), dtype=bool)].mean() - cosines[~same].mean()

    before = bf.TextEmbedder.from_pretrained(smallest)
    assert margin(before) < 0.1
    assert margin(fitted[0].embedder) > 0.5


@pytest.mark.extended
def test_labels_in_another_order(fitted, tmp_path):
    clf, _ = fitted
    clf.save(tmp_path / "task")
    other = bf.FewShotClassifier.from_pretrained(tmp_path / "task", LABELS[::-1])
    expected = np.stack([answer["scores"] for answer in clf.predict(NEW)])[:, ::-1]
    scores = np.stack([answer["scores"] for answer in other.predict(NEW)])
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.extended
def test_one_artefact(fitted, tmp_path):
    """Saved, as a SavedModel, and on a phone, it answers as ``predict`` does."""
    clf, _ = fitted
    expected = clf.predict(NEW)
    scores = np.array([answer["scores"] for answer in expected])
    clf.save(tmp_path / "task")
    again = bf.load(tmp_path / "task")
    assert isinstance(again, bf.FewShotClassifier)
    np.testing.assert_array_equal([a["scores"] for a in again.predict(NEW)], scores)
    again = bf.FewShotClassifier.from_pretrained(tmp_path / "task")
    np.testing.assert_array_equal([a["scores"] for a in again.predict(NEW)], scores)
    other = bf.FewShotClassifier.from_pretrained(tmp_path / "task", ["x", "y"])
    np.testing.assert_allclose([a["scores"] for a in other.predict(NEW)], 0.5)
    servable = load(clf.export(tmp_path / "export"))
    texts = {"text": np.array([text.encode() for text in NEW], object)}
    served = servable.run("serving_default", texts)
    np.testing.assert_allclose(served["scores"], scores, atol=1e-5)
    assert [label.decode() for label in served["label"]] == [a["label"] for a in expected]
    file = clf.export_tflite(tmp_path / "m.tflite")
    phone = interpreter(file.read_bytes()).get_signature_runner()(**texts)
    np.testing.assert_allclose(phone["scores"], scores, atol=1e-5)
    with pytest.raises(CheckpointError, match=r"embedder\.save_pretrained writes the embedder"):
        clf.save_pretrained(tmp_path / "published")
    clf.embedder.save_pretrained(tmp_path / "embedder")
    vectors = bf.TextEmbedder.from_pretrained(tmp_path / "embedder").predict(NEW)
    np.testing.assert_allclose(vectors, clf.embedder.predict(NEW), atol=1e-6)


@pytest.mark.extended
def test_the_optimizer_in_a_file_of_keras(fitted, tmp_path):
    """It has slots for the embedder alone, which it trained."""
    clf, _ = fitted
    clf.save(tmp_path / "task.keras")
    again = bf.load(tmp_path / "task.keras")
    for variable, expected in zip(again.optimizer.variables, clf.optimizer.variables, strict=True):
        np.testing.assert_array_equal(variable, expected)
    again.fit(TEXTS, GIVEN, **FIT | {"epochs": 1})


def test_invalid_examples(smallest):
    clf = bf.FewShotClassifier.from_pretrained(smallest, [*LABELS, "neither"])
    with pytest.raises(ValueError, match="no examples of the labels neither"):
        clf.fit(TEXTS, GIVEN)
    with pytest.raises(ValueError, match="The label 'best' is not one of: bad, good, neither"):
        clf.fit(TEXTS, ["best"] * 6)
    with pytest.raises(ValueError, match="labels"):
        clf.fit(TEXTS)
    with pytest.raises(ValueError, match="Sample weights are not supported"):
        clf.fit(tf.data.Dataset.from_tensor_slices((TEXTS, GIVEN, [1.0] * 6)))
    with pytest.raises(TypeError, match=r"'num_iterations'.*Write pairs=20\."):
        clf.fit(TEXTS, GIVEN, num_iterations=20)
    with pytest.raises(ValueError, match="pair must be false"):
        bf.FewShotClassifier.from_pretrained(smallest, LABELS, pair=True)
    with pytest.raises(ValueError, match="needs labels"):
        bf.FewShotClassifier.from_pretrained(smallest)


def test_pairs(smallest):
    """As many pairs of the same label as of others, whose similarities are 1 and 0."""
    clf = _new(smallest)
    labels = np.array([GIVEN.index(label) for label in GIVEN])
    examples = Examples(TEXTS, labels)
    first, second, similarities = clf._pairs(examples, clf.Settings(pairs=7), seed=0)
    assert len(first) == 2 * 7 * len(TEXTS)
    label = dict(zip(TEXTS, GIVEN, strict=True))
    same = [label[a] == label[b] for a, b in zip(first, second, strict=True)]
    np.testing.assert_array_equal(similarities, same)
    for text in TEXTS:
        chosen = [s for a, s in zip(first, similarities, strict=True) if a == text]
        assert sorted(chosen) == [0] * 7 + [1] * 7
    assert all(a != b for a, b in zip(first, second, strict=True))
    # The only example of its label.
    examples = Examples(["a", "b", "c"], np.array([0, 1, 1]))
    first, second, similarities = clf._pairs(examples, clf.Settings(pairs=1), seed=0)
    assert ("a", "a", 1.0) in zip(first, second, similarities, strict=True)
    trainer = clf.trainer(clf.Settings())
    assert float(trainer.default_optimizer().learning_rate) == pytest.approx(2e-5)


@pytest.mark.extended
def test_recipe(smallest, tmp_path, capsys, caplog, monkeypatch):
    """Examples of each label are drawn by the seed, and the run has the dev split's accuracy."""
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS * 2, GIVEN * 2, strict=True)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(smallest)},
        "task": "FewShotClassifier",
        "data": {name: str(tmp_path / "train.tsv") for name in ("train", "dev")} | {"per_label": 3},
        "trainer": {"pairs": 4},
        "train": {"epochs": 1, "batch_size": 4, "metrics": ["accuracy"]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 0
    assert "AutoGraph" not in caplog.text
    assert "6 of 12 examples, 3 of each label" in capsys.readouterr().err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.6
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 12  # 6 examples, 2 times 4 pairs of each, 4 in a batch
    assert main(["evaluate", str(tmp_path / "run"), "--split", "dev"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["accuracy"] == pytest.approx(metrics["accuracy"])


def test_too_few_examples_of_a_label(smallest, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tx\nb\tx\nc\ty\n")
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(smallest)},
        "data": {"train": str(tmp_path / "train.tsv"), "per_label": 2},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 2
    message = "data.per_label is 2, but there are 1 examples of the label 'y'"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("examples", "width", "classes"), [(24, 5, 3), (12, 40, 4), (20, 6, 2)])
def test_logistic_regression(examples, width, classes):
    """The gradient is zero at the result, and scikit-learn finds the same."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(examples, width)), random.integers(0, classes, examples)
    kernel, bias = fit_logistic_regression(x, y, classes, 0.5)
    logits = x @ kernel + bias
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    error = chances - np.eye(classes)[y]
    penalty = 1.0 if classes == 2 else 0.5
    np.testing.assert_allclose(x.T @ error + penalty * kernel, 0, atol=1e-5)
    np.testing.assert_allclose(error.sum(axis=0), 0, atol=1e-5)
    sklearn = pytest.importorskip("sklearn.linear_model")
    theirs = sklearn.LogisticRegression(C=2.0, max_iter=10_000, tol=1e-8).fit(x, y)
    np.testing.assert_allclose(theirs.predict_proba(x), chances, atol=1e-4)


def test_classes_that_are_separable():
    """With hardly any regularization the weights grow, and the fit still ends."""
    x = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    kernel, bias = fit_logistic_regression(x, np.array([0, 0, 1, 1]), 2, 1e-8)
    assert np.isfinite(kernel).all()
    assert ((x @ kernel + bias).argmax(axis=1) == [0, 0, 1, 1]).all()


@pytest.mark.extended
def test_names_beside_scores(fitted, smallest, tmp_path):
    """``serving_default`` returns the names of its scores with ``label_names``, as an option."""
    clf, _ = fitted
    clf.save(tmp_path / "task")
    command = ["export", str(tmp_path / "task"), str(tmp_path / "named"), "--label-names"]
    assert main(command) == 0
    texts = {"text": np.array([text.encode() for text in NEW], object)}
    answers = load(tmp_path / "named" / "1").run("serving_default", texts)
    assert answers["labels"].tolist() == [[b"bad", b"good"]] * len(NEW)
    best = answers["labels"][range(len(NEW)), answers["scores"].argmax(axis=1)]
    assert best.tolist() == answers["label"].tolist()
    with pytest.raises(ValueError, match="such as TextClassifier, got a TextEmbedder"):
        clf.embedder.export(tmp_path / "vectors", label_names=True)
