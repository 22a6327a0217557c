"""Two replicas distil as one, in parts and with recomputed blocks too.

In a process, because TensorFlow needs its devices first.
"""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import sys
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    import keras
    import bertfam_tf as bf
    from bertfam_tf.distill import HiddenStates, Relations, SoftTargets, student_of

    texts = ["a good film", "bad movie", "it is a very long and dull film", "plot", "good"] * 2
    labels = ["positive", "negative", "neutral", "negative", "neutral"] * 2
    losses, weights = [], []
    both = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for strategy, parts in ((tf.distribute.get_strategy(), 1), (both, 1), (both, 2)):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            teacher = bf.TextClassifier.from_pretrained(sys.argv[1])
            student = student_of(teacher, dropout=0.0, attention_dropout=0.0, hidden_size=16)
            terms = [SoftTargets(), HiddenStates(scaling="tinybert"), Relations(heads=4)]
            distiller = bf.Distiller(student, teacher, terms, labels=1.0)
            distiller.compile(keras.optimizers.SGD(0.05), accumulation_steps=parts)
            distiller.recompute_blocks = parts > 1
        fit = dict(batch_size=5, epochs=3, shuffle=False, verbose=0)
        losses.append(distiller.fit(texts, labels, **fit).history)
        weights.append({w.path: w.numpy() for w in distiller.weights})
    for found, learned in zip(losses[1:], weights[1:]):
        for name, values in losses[0].items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=name)
        for path, value in weights[0].items():
            np.testing.assert_allclose(learned[path], value, atol=1e-4, err_msg=path)
"""


@pytest.mark.full
def test_two_replicas_distil_as_one(smallest):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(smallest)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
