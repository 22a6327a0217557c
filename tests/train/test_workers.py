"""Several processes, as of several machines, train together as one would alone.

``TF_CONFIG`` names the workers; the scripts are those that a user starts on each machine.
"""

import json
import os
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

PREAMBLE = """
    import sys
    import numpy as np
    import keras
    import tensorflow as tf

    alone = "TF_CONFIG" not in __import__("os").environ
    strategy = tf.distribute.get_strategy() if alone else tf.distribute.MultiWorkerMirroredStrategy()
    import bertfam_tf as bf

    checkpoint, output = sys.argv[1:]
    quiet = dict(dropout=0.0, attention_dropout=0.0)
    long = "a very long and dull film with a plot that is not good at all " * 3
    texts = ["a good film", "bad movie", "it is", long, "plot", "dull", "very good", long] * 5
    labels = ["positive", "negative", "neutral", "negative", "neutral"] * 8

    def make(cls, *args, **kwargs):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            task = cls.from_pretrained(checkpoint, *args, **quiet, **kwargs)
            task.compile(keras.optimizers.SGD(0.01))
        return task

    def finish(task, history, *found):
        if strategy.cluster_resolver is None or strategy.cluster_resolver.task_id == 0:
            weights = {w.path: w.numpy() for w in task.weights}
            losses = np.array(history.history["loss"])
            np.savez(output, losses=losses, **weights, **{f"found/{i}": x for i, x in enumerate(found)})
"""
SCRIPTS = {
    "classification": """
        task = make(bf.TextClassifier)
        history = task.fit(texts, labels, batch_size=8, epochs=4, verbose=0)
        scores = np.stack([answer["scores"] for answer in task.predict(texts[:11])])
        finish(task, history, scores, task.evaluate(texts, labels, verbose=0))
    """,
    "tagging": """
        task = make(bf.TokenTagger, ["O", "B-X"], max_length=16)
        tags = [" ".join("O B-X".split()[i % 2] for i, _ in enumerate(t.split())) for t in texts]
        history = task.fit(texts, tags, batch_size=8, epochs=4, verbose=0)
        finish(task, history, task.evaluate(texts, tags, verbose=0))
    """,
    "questions": """
        task = make(bf.SpanQA, max_length=24, stride=4)
        asked = {"question": ["good"] * 40, "context": [f"{t} good" for t in texts]}
        answers = {"answer": ["good"] * 40, "answer_start": [t.find("good") if "good" in t
                   else len(t) + 1 for t in texts]}
        history = task.fit(asked, answers, batch_size=8, epochs=4, verbose=0)
        finish(task, history, task.evaluate(asked, answers, verbose=0))
    """,
    "masked words": """
        task = make(bf.MaskedLM)
        history = task.fit(texts, batch_size=8, epochs=4, verbose=0)
        finish(task, history)
    """,
}


def _ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _run(script, checkpoint, folder, count):
    """What the first of so many workers stored."""
    code = textwrap.dedent(PREAMBLE) + textwrap.dedent(SCRIPTS[script])
    output = folder / f"{count}.npz"
    addresses = [f"127.0.0.1:{port}" for port in _ports(count)]
    workers = []
    for index in range(count):
        environment = dict(os.environ)
        if count > 1:
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps(
                {"cluster": {"worker": addresses}, "task": task}
            )
        command = [sys.executable, "-c", code, str(checkpoint), str(output)]
        workers.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    for worker in workers:
        printed, _ = worker.communicate(timeout=300)
        assert worker.returncode == 0, printed
    with np.load(output) as found:
        return dict(found)


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS)
def test_workers_learn_and_answer_as_one(script, smallest, tmp_path):
    one = _run(script, smallest, tmp_path, 1)
    counts = (2, 3) if script == "classification" else (2,)
    for count in counts:
        several = _run(script, smallest, tmp_path, count)
        assert one.keys() == several.keys()
        for name, value in one.items():
            np.testing.assert_allclose(several[name], value, atol=1e-5, err_msg=f"{count} {name}")
