"""Two replicas: `tf.distribute` needs its devices before TensorFlow starts, so in a process."""

import subprocess
import sys
import textwrap

import pytest

PREAMBLE = """
    import sys
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)

    import keras
    import bertfam_tf as bf
"""
CLASSIFIER = """
    texts = ["a good film", "bad movie", "it is", "very dull", "plot"] * 2
    labels = ["positive", "negative", "neutral", "negative", "neutral"] * 2

    def make():
        task = bf.TextClassifier.from_pretrained(sys.argv[1], dropout=0.0, attention_dropout=0.0)
        task.compile(keras.optimizers.SGD(0.1))
        return task

    one = make()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        both = make()
    losses = [
        task.fit(texts, labels, batch_size=4, shuffle=False, verbose=0).history["loss"]
        for task in (one, both)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    scores = [np.stack([a["scores"] for a in task.predict(texts)]) for task in (one, both)]
    np.testing.assert_allclose(*scores, atol=1e-3)
    assert isinstance(both.backbone.weights[0].value, tf.distribute.DistributedValues)
"""


# The batch is the first axis of every input, whatever stands behind it; ranks are of all rows.
CHOICES_AND_RANKS = """
    rows = {
        "text": ["a good film", "bad movie", "it is", "very dull", "plot"] * 2,
        "choices": [["good", "bad film"], ["it", ""], ["a", "the"], ["we", "you"], ["i", "!"]] * 2,
    }

    def make(cls, *args):
        keras.utils.set_random_seed(0)
        quiet = dict(dropout=0.0, attention_dropout=0.0)
        task = cls.from_pretrained(sys.argv[1], *args, **quiet)
        task.compile(keras.optimizers.SGD(0.1))
        return task

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    ones = make(bf.MultipleChoice, 2), make(bf.TextRegressor)
    with strategy.scope():
        boths = make(bf.MultipleChoice, 2), make(bf.TextRegressor)
    weights = np.arange(10.0)
    losses = [
        task.fit(
            rows, list("ABABA") * 2, sample_weight=weights, batch_size=4, shuffle=False, verbose=0
        ).history["loss"]
        for task in (ones[0], boths[0])
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    scores = [np.stack([a["scores"] for a in task.predict(rows)]) for task in (ones[0], boths[0])]
    np.testing.assert_allclose(*scores, atol=1e-3)

    # No two alike: rounding would rank them.
    texts = [*rows["text"][:5], "film", "good movie", "it is a plot", "dull"]
    data = (texts, [3.0, 1.0, 2.0, 5.0, 4.0, 0.0, 1.0, 7.0, 2.5])
    found = [
        task.evaluate(*data, batch_size=4, verbose=0, return_dict=True)
        for task in (ones[1], boths[1], boths[1])
    ]
    for name in ("loss", "pearson", "spearman"):
        np.testing.assert_allclose(found[1][name], found[0][name], atol=1e-5, err_msg=name)
        assert found[2][name] == found[1][name]
    assert abs(found[0]["spearman"]) > 0.01
"""


@pytest.mark.parametrize("script", [CLASSIFIER, CHOICES_AND_RANKS], ids=["labels", "others"])
def test_two_replicas_learn_and_answer_as_one(smallest, script):
    command = [sys.executable, "-c", textwrap.dedent(PREAMBLE + script), str(smallest)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
