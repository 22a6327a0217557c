"""Several processes, as of several machines, train together as one would alone.

``TF_CONFIG`` names the workers; the scripts are those that a user starts on each machine.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertfam_tf.training import replicas
from bertfam_tf.training.settings import TrainConfig

PREAMBLE = """
    import sys
    import numpy as np
    import keras
    import tensorflow as tf

    alone = "TF_CONFIG" not in __import__("os").environ
    from bertfam_tf.training import replicas

    strategy = replicas.strategy("none" if alone else "multi_worker")
    import bertfam_tf as bf

    checkpoint, output, parts = sys.argv[1:]
    quiet = dict(dropout=0.0, attention_dropout=0.0)
    long = "a very long and dull film with a plot that is not good at all " * 3
    texts = ["a good film", "bad movie", "it is", long, "plot", "dull", "very good", long] * 5
    labels = ["positive", "negative", "neutral", "negative", "neutral"] * 8

    def make(cls, *args, **kwargs):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            task = cls.from_pretrained(checkpoint, *args, **quiet, **kwargs)
            task.compile(keras.optimizers.SGD(0.01), accumulation_steps=int(parts))
        return task

    def finish(task, history, *found):
        if strategy.cluster_resolver is None or strategy.cluster_resolver.task_id == 0:
            values = {w.path: w.numpy() for w in task.weights}
            values |= {f"found/{i}": value for i, value in enumerate(found)}
            np.savez(output, losses=np.array(history.history["loss"]), **values)
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
        starts = [f"{t} good".find("good") for t in texts]
        answers = {"answer": ["good"] * 40, "answer_start": starts}
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


def _start(command, count):
    """So many workers that run a command."""
    addresses = [f"127.0.0.1:{port}" for port in _ports(count)]
    started = []
    for index in range(count):
        environment = dict(os.environ)
        if count > 1:
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        # A file: a worker that waits until its pipe is read would let the others wait for it.
        printed = tempfile.TemporaryFile("w+")  # noqa: SIM115
        started.append(
            subprocess.Popen(command, env=environment, stdout=printed, stderr=subprocess.STDOUT)
        )
        started[-1].printed = printed
    return started


def _finish(workers):
    for worker in workers:
        status = worker.wait(timeout=300)
        worker.printed.seek(0)
        assert status == 0, worker.printed.read()


def _run(script, checkpoint, folder, count, parts=1):
    """What the first of so many workers stored, each of which splits its batches into parts."""
    code = textwrap.dedent(PREAMBLE) + textwrap.dedent(SCRIPTS[script])
    output = folder / f"{count}.npz"
    _finish(_start([sys.executable, "-c", code, str(checkpoint), str(output), str(parts)], count))
    with np.load(output) as found:
        return dict(found)


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS)
def test_workers_learn_and_answer_as_one(script, smallest, tmp_path):
    one = _run(script, smallest, tmp_path, 1)
    counts = {"classification": ((2, 1), (3, 4)), "questions": ((2, 1), (2, 4))}
    for count, parts in counts.get(script, ((2, 1),)):
        several = _run(script, smallest, tmp_path, count, parts)
        assert one.keys() == several.keys()
        for name, value in one.items():
            np.testing.assert_allclose(several[name], value, atol=1e-5, err_msg=f"{count} {name}")


RECIPE = """
output: {output}
model: {{path: {checkpoint}, overrides: {{dropout: 0.1}}}}
data: {{train: {data}, dev: {data}, labels: [negative, neutral, positive]}}
train:
  {{epochs: 6, batch_size: 8, learning_rate: 1.0e-3, backup_steps: 2, strategy: multi_worker,
   patience: 2, monitor: accuracy}}
"""


@pytest.mark.full
def test_a_recipe_of_two_workers_of_which_one_is_killed(smallest, tmp_path):
    """Started again, as a scheduler does, the job ends with the best epoch of one that was not."""
    data = tmp_path / "data.tsv"
    rows = zip("negative neutral positive".split() * 8, range(24), strict=True)
    data.write_text("text\tlabel\n" + "".join(f"a film {i}\t{label}\n" for label, i in rows))

    def start(name):
        recipe = tmp_path / f"{name}.yaml"
        values = dict(output=tmp_path / name, checkpoint=smallest, data=data)
        recipe.write_text(RECIPE.format(**values))
        return _start([sys.executable, "-m", "bertfam_tf.cli", "train", str(recipe)], 2)

    _finish(start("plain"))
    workers = start("killed")
    backup = tmp_path / "killed" / "backup" / "state.safetensors"
    while not backup.exists():
        assert all(worker.poll() is None for worker in workers)
        time.sleep(0.02)
    workers[1].kill()
    try:
        workers[0].wait(timeout=20)
    except subprocess.TimeoutExpired:
        workers[0].kill()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    _finish(start("killed"))
    weights = [
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("plain", "killed")
    ]
    for name, value in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], value, err_msg=name)
    metrics = [(tmp_path / name / "metrics.json").read_text() for name in ("plain", "killed")]
    assert metrics[0] == metrics[1]


SMALL = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=64)
QUIET = dict(dropout=0.0)
# Of another length, with larger batches, and deeper than the one before.
STAGES = [
    {"steps": 2, "length": 12},
    {"steps": 2, "batch_size": 7, "learning_rate": 1e-3},
    {"steps": 2, "layers": 2},
]


def _pretraining(kind, tiny, folder):
    """A recipe of a kind, without its output and strategy; batches are not divisible by two."""
    lines = [f"The {'good' if i % 3 else 'bad'} film {'is dull ' * (i % 4)}." for i in range(42)]
    for name, text in (("en", lines), ("fr", [f"a plot, {line}" for line in lines])):
        # Documents of six lines, where pairs are formed.
        ends = ["\n\n" if kind == "pairs" and i % 6 == 5 else "\n" for i in range(42)]
        (folder / name).write_text("".join(map("".join, zip(text, ends, strict=True))))
    en, fr = str(folder / "en"), str(folder / "fr")
    values = {
        "model": {"family": "bert", "size": "tiny", "tokenizer": str(tiny)},
        "data": {"train": [en], "dev": [fr], "format": "full_sentences", "length": 24},
        "objectives": {"mlm": 1.0},
        "train": {"steps": 6, "epochs": 2, "batch_size": 5, "learning_rate": 1e-3},
    }
    overrides = {**SMALL, **QUIET, "attention_dropout": 0.0}
    if kind == "stages":
        values["stages"] = STAGES
        values["train"] |= {"steps": None}
    elif kind == "pairs":
        values["objectives"] |= {"nsp": 1.0}
        values["data"] |= {"format": "segment_pairs"}
    elif kind == "languages":
        texts, both = {"en": [en], "fr": [fr]}, {"en-fr": [en, fr], "fr-en": [fr, en]}
        values["model"] |= {"family": "xlm"}
        values["objectives"] |= {"tlm": 1.0}
        values["data"] |= {"train": texts, "dev": texts}
        values["data"] |= {f"{name}_translations": both for name in ("train", "dev")}
    elif kind == "stream":
        memory = dict(cutoffs=[3], embedding_size=16, head_size=8, mem_len=64)
        overrides = {**SMALL, **QUIET, **memory, "same_length": False, "clamp_len": -1}
        values["model"] |= {"family": "transformer_xl"}
        values["data"] = {"train": [en], "dev": [fr], "end": "[SEP]", "length": 16}
        values["train"] |= {"steps": None, "batch_size": 3}
        values["objectives"] = {"clm": 1.0}
    values["model"]["overrides"] = overrides
    return values


MIRRORED = """
    import sys
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from bertfam_tf.cli import main

    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["pairs", "stages", "languages", "stream"])
def test_workers_and_replicas_pretrain_as_one(kind, tiny, tmp_path):
    values = _pretraining(kind, tiny, tmp_path)
    weights, metrics = {}, {}
    for strategy in ("none", "multi_worker", "mirrored"):
        output = tmp_path / strategy
        values["output"] = str(output)
        values["train"]["strategy"] = strategy
        recipe = tmp_path / f"{strategy}.yaml"
        recipe.write_text(json.dumps(values))
        command = ["-m", "bertfam_tf.cli"]
        if strategy == "mirrored":
            command = ["-c", textwrap.dedent(MIRRORED)]
        count = 2 if strategy == "multi_worker" else 1
        _finish(_start([sys.executable, *command, "pretrain", str(recipe)], count))
        weights[strategy] = load_file(output / "model" / "model.safetensors")
        found = json.loads((output / "metrics.json").read_text())
        metrics[strategy] = {name: value for name, value in found.items() if name != "samples"}
        assert not (output / "backup").exists()
    for strategy in ("multi_worker", "mirrored"):
        assert weights[strategy].keys() == weights["none"].keys()
        for name, value in weights["none"].items():
            found = weights[strategy][name]
            np.testing.assert_allclose(found, value, atol=1e-5, err_msg=f"{strategy} {name}")
        assert metrics[strategy] == pytest.approx(metrics["none"], rel=1e-4), strategy


TWO_MODELS = """
    import keras
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from bertfam_tf.training import replicas

    for width in (3, 5):
        with replicas.strategy("mirrored").scope():
            model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=False)
        assert model.distribute_strategy.num_replicas_in_sync == 2
        model.fit(np.ones((8, width)), np.ones((8, 1)), batch_size=4, verbose=0)
"""


@pytest.mark.extended
def test_a_process_trains_several_models_on_replicas():
    """As a sweep does."""
    _finish(_start([sys.executable, "-c", textwrap.dedent(TWO_MODELS)], 1))


def test_parameter_servers_are_refused():
    with pytest.raises(ValueError, match="parameter servers train asynchronously"):
        replicas.strategy("parameter_server")
    with pytest.raises(ValueError, match=r"strategy must be one of none, mirrored.*'gpus'"):
        TrainConfig(strategy="gpus")


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "chief"),
    [
        ({"worker": ["a:1", "b:1"]}, "worker", 0, True),
        ({"worker": ["a:1", "b:1"]}, "worker", 1, False),
        ({"chief": ["a:1"], "worker": ["b:1"]}, "chief", 0, True),
        ({"chief": ["a:1"], "worker": ["b:1"]}, "worker", 0, False),
    ],
)
def test_one_process_writes(cluster, kind, index, chief, monkeypatch):
    config = {"cluster": cluster, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert replicas.is_chief() == chief
    monkeypatch.delenv("TF_CONFIG")
    assert replicas.is_chief()
