"""A made-up task, all of it in this file: which of two texts comes first."""

import inspect
import json
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.data import read_rows, targets
from bertfam_tf.data.inputs import Fields
from bertfam_tf.export.runtime import load as load_export
from bertfam_tf.recipes import answer_file, evaluate, run
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.components import NO_LABELS, Targets, TaskComponents
from bertfam_tf.tasks.options import Options, option
from bertfam_tf.tasks.preprocessing import SingleRow
from bertfam_tf.training.learner import mean_loss


@dataclass(frozen=True, kw_only=True)
class OrderOptions(Options):
    """Options of ``SentenceOrder``."""

    margin: float = option(0.0, settable=True, at_least=0, below=0.5)


class OrderTargets(Targets):
    """1 where the first text comes first, 0 where the second does."""

    def check(self, y):
        if y is None:
            raise ValueError(NO_LABELS)

    def encode(self, labels, encoded):
        labels = tf.strings.to_number(labels) if labels.dtype == tf.string else labels
        return tf.cast(labels, tf.float32)


class SentenceOrder(Task):
    """Whether two sentences stand in order.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
        margin: how far above 0.5 a probability of order is.
    """

    options_type = OrderOptions
    fields = Fields(("first", "second"), ())
    head_name = "sequence"
    labels_type = targets.Number

    def parts(self, backbone, tokenizer, options):
        head = heads.build(backbone, self.head_name, 1)
        inputs = backbone.token_inputs

        def answer(logits, encoded):
            score = tf.sigmoid(tf.cast(logits[:, 0], tf.float32))
            return {"score": score, "in_order": score > 0.5 + self.margin}

        def to_python(answers, texts):
            columns = (answers[name].numpy().tolist() for name in ("score", "in_order"))
            return [{"score": s, "in_order": o} for s, o in zip(*columns, strict=True)]

        def loss(true, logits, weights):
            losses = keras.ops.binary_crossentropy(true, logits[:, 0], from_logits=True)
            return mean_loss(losses, weights)

        return TaskComponents(
            inputs=inputs,
            outputs=head(backbone(inputs)),
            head=head,
            source=head.reads,
            preprocessor=SingleRow(backbone, tokenizer, options, self.fields),
            postprocess=answer,
            to_python=to_python,
            targets=OrderTargets(),
            loss=loss,
            metrics=lambda: [keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")],
        )


FIRST = ["a good film", "it is", "the plot", "bad movie"]
SECOND = ["it is dull", "very good", "a film", "the cast"]
X, Y = {"first": FIRST, "second": SECOND}, [1, 0, 1, 0]


@pytest.fixture(scope="module")
def task(smallest):
    found = SentenceOrder.from_pretrained(smallest, max_length=20, dropout=0.0, margin=0.1)
    history = found.fit(X, Y, epochs=2, batch_size=2, verbose=0, validation_data=(X, Y)).history
    assert history.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    return found


@pytest.mark.full
def test_predict_and_evaluate(task):
    answers = task.predict(X, batch_size=3)
    scores = np.array([answer["score"] for answer in answers])
    found = task.evaluate(X, Y, return_dict=True, verbose=0)
    expected = -np.log(np.where(Y, scores, 1 - scores)).mean()
    assert found["loss"] == pytest.approx(expected, rel=1e-4)
    assert [answer["in_order"] for answer in answers] == (scores > 0.6).tolist()
    task.margin = 0.0
    assert [a["in_order"] for a in task.predict(X)] == (scores > 0.5).tolist()
    task.margin = 0.1
    with pytest.raises(ValueError, match="No labels were given with the texts"):
        task.evaluate(X)


@pytest.mark.full
@pytest.mark.full
def test_save_load_and_export(task, tmp_path):
    task.save(tmp_path / "task")
    again = bf.load(tmp_path / "task")
    assert type(again) is SentenceOrder
    assert (again.margin, again.max_length) == (0.1, 20)
    assert again.predict(X) == task.predict(X)
    served = load_export(task.export(tmp_path / "export"))
    texts = {name: np.array([t.encode() for t in values], object) for name, values in X.items()}
    found = served.run("serving_default", texts)
    expected = [answer["score"] for answer in task.predict(X)]
    np.testing.assert_allclose(found["score"], expected, rtol=1e-5)


@pytest.mark.full
def test_options_are_shown_and_refused(task, smallest):
    shown = inspect.signature(SentenceOrder).parameters
    assert shown["margin"].default == 0.0
    assert {"max_length", "padding", "name"} <= shown.keys()
    with pytest.raises(TypeError, match=r"'margn'. .*Did you mean 'margin'"):
        SentenceOrder(task.backbone, task.tokenizer, margn=0.1)
    with pytest.raises(ValueError, match="margin must be at least 0"):
        SentenceOrder.from_pretrained(smallest, margin=1.0)


@pytest.mark.full
def test_a_recipe(smallest, tmp_path):
    lines = ["first\tsecond\tlabel", *map("\t".join, zip(FIRST, SECOND, "1010", strict=True))]
    (tmp_path / "t.tsv").write_text("\n".join(lines) + "\n")
    recipe = {
        "output": str(tmp_path / "run"),
        "task": "SentenceOrder",
        "model": {"path": str(smallest)},
        "options": {"margin": 0.2},
        "data": {
            "train": str(tmp_path / "t.tsv"),
            "dev": str(tmp_path / "t.tsv"),
            "columns": {"first": "first", "second": "second"},
        },
        "train": {"epochs": 1, "batch_size": 2},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    metrics = run(load_recipe(file))
    task = bf.load(tmp_path / "run" / "model")
    assert (type(task), task.margin) == (SentenceOrder, 0.2)
    assert evaluate(task, load_recipe(file), "dev") == pytest.approx(metrics, rel=1e-4)
    rows = read_rows(tmp_path / "t.tsv", {"first": "first", "second": "second"})
    assert answer_file(task, rows, tmp_path / "out", {}, verbose=False) == 4
    answers = [json.loads(line) for line in (tmp_path / "out").open()]
    assert answers[0].keys() == {"row", "score", "in_order"}
    with pytest.raises(ValueError, match="Unknown option of SentenceOrder 'margn'"):
        run(load_recipe(file, ["options={margn: 0.1}", f"output={tmp_path}/other"]))
