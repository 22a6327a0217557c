"""Two replicas: `tf.distribute` needs its devices before TensorFlow starts, so in a process."""

import subprocess
import sys
import textwrap

REPLICAS = """
    import sys
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)

    import keras
    import bertfam_tf as bf

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


def test_two_replicas_learn_and_answer_as_one(smallest):
    command = [sys.executable, "-c", textwrap.dedent(REPLICAS), str(smallest)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
