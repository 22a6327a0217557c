"""A made-up task with a trainer and a score of its own, all of it in this file: a text's length.

Recipes train it without knowing its name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.data import targets
from bertfam_tf.objectives.objective import Supervised
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.components import TaskComponents
from bertfam_tf.tasks.preprocessing import SingleRow
from bertfam_tf.training.learner import Learner, mean_loss


class LengthTrainer(Learner):
    """Trains a ``TextLength`` on the squared error, in units that its settings choose."""

    @dataclass(frozen=True)
    class Settings:
        """The section ``trainer`` of recipes."""

        unit: float = 1.0

    def __init__(self, task: TextLength, unit: float):
        def loss(true: Any, outputs: Any, weights: Any) -> Any:
            return mean_loss(keras.ops.square(outputs[:, 0] - true / unit), weights)

        super().__init__(task.components.inputs, task.output, [Supervised(loss)])
        self.task, self.unit = task, unit

    def fit(self, x: Any, validation_data: Any = None, **kwargs: Any) -> Any:
        batches = [None if data is None else self._encoded(data) for data in (x, validation_data)]
        return super().fit(batches[0], validation_data=batches[1], **kwargs)

    def _encoded(self, data: tf.data.Dataset) -> tf.data.Dataset:
        preprocessor = self.task.components.preprocessor

        @tf.autograph.experimental.do_not_convert
        def encode(features: Any, lengths: Any) -> Any:
            numbers = tf.strings.to_number(lengths)
            return preprocessor.inputs(preprocessor(features)), numbers

        return data.map(encode)


class TextLength(Task):
    """How long a text is said to be.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
    """

    file_labels_type = targets.Number
    trainer_settings = LengthTrainer.Settings
    unused_settings = ("class_weights",)

    def parts(self, backbone: Any, tokenizer: Any, options: Any) -> TaskComponents:
        dense = keras.layers.Dense(1, name="length")
        inputs = backbone.token_inputs
        return TaskComponents(
            inputs=inputs,
            outputs=dense(backbone(inputs)["first_token"]),
            source="first_token",
            preprocessor=SingleRow(backbone, tokenizer, options, self.fields),
            postprocess=lambda outputs, _: {"length": outputs[:, 0]},
            to_python=lambda answers, _: answers["length"].numpy().tolist(),
        )

    def trainer(self, settings: Any) -> LengthTrainer:
        return LengthTrainer(self, settings.unit)

    def score(self, rows: Any, settings: Any = None, *, batch_size: int = 32, language: Any = None):
        texts, lengths = zip(
            *((x["text"], float(y)) for x, y in rows.as_numpy_iterator()), strict=True
        )
        found = np.array(self.predict(list(texts), batch_size=batch_size)) * settings.unit
        return {"mean_error": float(np.abs(found - np.array(lengths)).mean())}


@pytest.mark.extended
def test_a_recipe(smallest, tmp_path, capsys):
    texts = ["a good film", "it is", "the plot is dull", "bad"] * 3
    lines = ["text\tlabel", *(f"{text}\t{len(text.split())}" for text in texts)]
    (tmp_path / "rows.tsv").write_text("\n".join(lines) + "\n")
    recipe = {
        "output": str(tmp_path / "run"),
        "task": "TextLength",
        "trainer": {"unit": 2.0},
        "model": {"path": str(smallest)},
        "data": {split: str(tmp_path / "rows.tsv") for split in ("train", "dev")},
        "train": {"epochs": 4, "batch_size": 4, "learning_rate": 0.01},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    assert main(["train", str(file)]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics.keys() == {"mean_error"}
    assert metrics["mean_error"] < 1.0
    found = np.array(bf.load(tmp_path / "run" / "model").predict(texts)) * 2
    lengths = [len(text.split()) for text in texts]
    np.testing.assert_allclose(np.abs(found - lengths).mean(), metrics["mean_error"], rtol=1e-4)
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == metrics
    for override, error in (
        ("trainer.units=1", "Unknown key in section trainer 'units'. Did you mean 'unit'"),
        ("train.class_weights={a: 1.0}", "train.class_weights must be null for the task TextLeng"),
        ("data.label=null", "data.label must be a column for the task TextLength"),
    ):
        assert main(["train", str(file), override, f"output={tmp_path / 'other'}"]) == 2
        assert error in capsys.readouterr().err
