"""A step in parts is the step of the whole batch, with any number of labels in each part."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

import bertfam_tf as bf
from bertfam_tf.objectives.objective import Supervised
from bertfam_tf.recipes import pretrain, run
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.training import optimizers
from bertfam_tf.training.callbacks.backup import Backup
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import TrainConfig
from tests.extending.test_objective import Correct, Length, data, learner
from tests.recipes.test_sentences import recipe as sentences  # noqa: F401
from tests.selection import in_full, only_in

LONG = "a very long and dull film with a plot that is not good at all " * 3
TEXTS = ["a good film", "bad movie", "it is", LONG, "plot", "dull", "very good", LONG] * 5
LABELS = ["positive", "negative", "neutral", "negative", "neutral"] * 8
QUIET = dict(dropout=0.0, attention_dropout=0.0)


def _tags():
    return [" ".join("O B-X".split()[i % 2] for i, _ in enumerate(t.split())) for t in TEXTS]


def _questions():
    contexts = [f"{text} good" for text in TEXTS]
    starts = [text.find("good") for text in contexts]
    asked = {"question": ["good"] * 40, "context": contexts}
    return asked, {"answer": ["good"] * 40, "answer_start": starts}


TASKS = {
    "classification": (bf.TextClassifier, [], {}, lambda: (TEXTS, LABELS)),
    "tagging": (bf.TokenTagger, [["O", "B-X"]], {"max_length": 16}, lambda: (TEXTS, _tags())),
    "questions": (bf.SpanQA, [], {"max_length": 24, "stride": 4}, _questions),
    "masked words": (bf.MaskedLM, [], {}, lambda: (TEXTS,)),
    "several labels": (
        bf.MultiLabelClassifier,
        [["x", "y"]],
        {},
        lambda: (TEXTS, [["x"], [], ["x", "y"], ["y"]] * 10),
    ),
    "choices": (
        bf.MultipleChoice,
        [2],
        {},
        lambda: ({"text": TEXTS, "choices": [["a", text] for text in TEXTS]}, [0, 1] * 20),
    ),
}


@only_in("full", "questions")
@pytest.mark.parametrize("name", in_full(TASKS, ["questions"]))
def test_tasks_learn_in_parts_as_at_once(name, smallest):
    """Batches of 9 in 4 parts: of three examples, or of windows, the last part with fewer."""
    cls, args, options, examples = TASKS[name]
    found = []
    for parts in (1, 4):
        keras.utils.set_random_seed(0)
        task = cls.from_pretrained(smallest, *args, **options, **QUIET)
        task.compile(keras.optimizers.SGD(0.01), accumulation_steps=parts)
        history = task.fit(*examples(), batch_size=9, epochs=4, verbose=0).history
        found.append({**{w.path: w.numpy() for w in task.weights}, **history})
    assert found[0].keys() == found[1].keys()
    for path, value in found[0].items():
        np.testing.assert_allclose(found[1][path], value, rtol=1e-6, atol=1e-5, err_msg=path)


@only_in("full", "True")
@pytest.mark.parametrize("recompute", in_full([False, True], [True]))
def test_losses_that_are_divided_by_numbers_of_their_own(recompute):
    """Also with clipping, moments and recomputed blocks; metrics are as of the whole batch."""
    models = [learner(Correct, Length) for _ in range(2)]
    for model, parts in zip(models, (1, 3), strict=True):
        model.recompute_blocks = recompute
        model.compile(optimizers.adamw(1e-3, clip_norm=0.1), accumulation_steps=parts)
    histories = [model.fit(data(7)[1], epochs=10, verbose=0).history for model in models]
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)
    for a, b in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5, err_msg=a.path)
    assert int(models[1].optimizer.iterations) == 20


class _Seen(keras.layers.Layer):
    """Counts how often it is computed, and the rows that it gets."""

    rows: list[int] = []

    def call(self, x):
        def see(value):
            self.rows.append(len(value))
            return value

        seen = tf.ensure_shape(tf.numpy_function(see, [x], x.dtype, stateful=False), x.shape)
        return x + tf.stop_gradient(seen - x)


@pytest.mark.extended
def test_a_part_is_computed_once():
    """What counts do not depend on is left out of the loop that adds them up."""
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1)(_Seen()(inputs))

    def loss(targets, outputs, weights):
        losses = (outputs[:, 0] - targets) ** 2
        return tf.reduce_sum(losses), tf.cast(tf.size(targets), "float32")

    model = Learner(inputs, outputs, [Supervised(loss)])
    model.compile("sgd", accumulation_steps=3)
    _Seen.rows.clear()
    model.fit(np.ones((8, 3), "float32"), np.ones(8, "float32"), batch_size=8, verbose=0)
    assert _Seen.rows == [3, 3, 2]


REPLICAS = """
    import sys
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import keras
    import bertfam_tf as bf
    from bertfam_tf import heads, optimizers
    from tests.extending.test_objective import Correct, Length, data, learner
    from tests.training.test_accumulation import TASKS, QUIET

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def same(one, both, histories):
        for name, values in histories[0].items():
            np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)
        for a, b in zip(one.weights, both.weights, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5, err_msg=a.path)

    one = learner(Correct, Length)
    with strategy.scope():
        both = learner(Correct, Length)
        both.compile("sgd", accumulation_steps=4)
    # Batches of five: replicas get three examples and two, and of the last batch one each.
    same(one, both, [m.fit(data(5)[1], epochs=7, verbose=0).history for m in (one, both)])

    cls, args, options, examples = TASKS["questions"]
    made, histories = [], []
    for parts, scope in ((1, tf.distribute.get_strategy().scope()), (4, strategy.scope())):
        keras.utils.set_random_seed(0)
        with scope:
            task = cls.from_pretrained(sys.argv[1], *args, **options, **QUIET)
            task.compile(keras.optimizers.SGD(0.01), accumulation_steps=parts)
        made.append(task)
        histories.append(task.fit(*examples(), batch_size=9, epochs=4, verbose=0).history)
    same(*made, histories)

    # What a step measures, and steps that are left out: in all replicas, if one is not finite.
    pair = [learner(Correct, Length)]
    with strategy.scope():
        pair.append(learner(Correct, Length))
    for model, count in zip(pair, (1, 4), strict=True):
        with model.distribute_strategy.scope():
            optimizer = optimizers.AdamW(1e-3, skip_nonfinite=True, global_clipnorm=0.1)
        model.compile(optimizer, accumulation_steps=count)
        model.fit(data(5)[1], epochs=2, verbose=0)
    same(*pair, [{}, {}])
    for read in (
        lambda model: model.step_loss.read(),
        lambda model: model.step_counts.take(),
        lambda model: model.optimizer.gradient_norm.read(),
    ):
        np.testing.assert_allclose(*map(read, pair), rtol=1e-5)
    before = [w.numpy() for w in (*pair[1].weights, *pair[1].optimizer.variables)]
    whole = pair[1].objectives[0].loss

    def loss(outputs, heads, batch):
        found = whole(outputs, heads, batch)
        total, count = found["parity"]
        last = tf.distribute.get_replica_context().replica_id_in_sync_group == 1
        return {**found, "parity": (total * tf.where(last, np.nan, 1.0), count)}

    pair[1].objectives[0].loss = loss
    pair[1].make_train_function(force=True)
    pair[1].fit(data(5)[1].take(2), verbose=0)
    assert pair[1].optimizer.skipped.read() == 2
    after = [w.numpy() for w in (*pair[1].weights, *pair[1].optimizer.variables)]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)

    both.compile("sgd")
    with strategy.scope():
        accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    try:
        both.compile(accumulating)
    except ValueError as error:
        assert "compile(accumulation_steps=2)" in str(error), error
    else:
        raise AssertionError("Keras' accumulation was taken")
"""


@pytest.mark.full
def test_replicas_learn_in_parts_as_one_at_once(smallest):
    code = textwrap.dedent(REPLICAS)
    command = [sys.executable, "-c", code, str(smallest)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


class Killed(BaseException):
    """Ends a run without a process of its own."""


@pytest.mark.full
def test_a_killed_run_in_parts_ends_as_one_that_was_not(smallest, tmp_path, monkeypatch):
    """Steps, checkpoints and the schedule count optimizer steps; dropout is on."""
    lines = [f"a film {i}\t{label}" for i, label in enumerate(LABELS[:20])]
    (tmp_path / "data.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")

    def recipe(name):
        values = {
            "output": str(tmp_path / name),
            "model": {"path": str(smallest), "overrides": {"dropout": 0.1}},
            "data": {"train": str(tmp_path / "data.tsv")},
            "train": {"epochs": 2, "batch_size": 8, "accumulation_steps": 4, "backup_steps": 2},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
        return load_recipe(tmp_path / f"{name}.yaml")

    after = Backup.on_train_batch_end
    steps = []

    def killed(backup, batch, logs=None):
        after(backup, batch, logs)
        steps.append(int(backup.model.optimizer.iterations))
        if steps[-1] == 5:
            raise Killed

    run(recipe("whole"))
    monkeypatch.setattr(Backup, "on_train_batch_end", killed)
    with pytest.raises(Killed):
        run(recipe("killed"))
    monkeypatch.undo()
    assert steps == [1, 2, 3, 4, 5]
    run(recipe("killed"))
    weights = [bf.load(tmp_path / name / "model").weights for name in ("whole", "killed")]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)


@pytest.mark.full
def test_pretraining_in_parts(sentences):  # noqa: F811
    found = []
    for parts in (1, 4):
        file = sentences(
            objectives={"mlm": 1.0, "nsp": 1.0},
            overrides={**QUIET, "initializer_range": 0.5},
            output=f"in_{parts}",
            train={"accumulation_steps": parts},
        )
        found.append(pretrain(load_recipe(file, kind=PretrainRecipe)))
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_what_is_refused():
    model = learner(Correct)
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    for given, message in (
        (dict(accumulation_steps=0), "accumulation_steps must be at least 1, got 0"),
        (dict(loss="mse", accumulation_steps=2), "must be 1 with a loss of compile"),
        (dict(jit_compile=True, accumulation_steps=2), "must be 1 with jit_compile"),
        (dict(optimizer=accumulating, accumulation_steps=2), "must be 1 with gradient_accumula"),
    ):
        with pytest.raises(ValueError, match=message):
            model.compile(**given)

    class Doubled(Learner):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    doubled = Doubled(model.inputs, model.outputs, model.objectives)
    doubled.compile()
    with pytest.raises(ValueError, match="must be 1 with an overridden compute_loss"):
        doubled.compile(accumulation_steps=2)
    for given, message in (
        (dict(accumulation_steps=0), "train.accumulation_steps must be at least 1"),
        (dict(accumulation_steps=64), "must be at most the 32 examples of train.batch_size"),
        (dict(accumulation_steps=2, strategy="tpu"), "must be 1 with strategy tpu"),
    ):
        with pytest.raises(ValueError, match=message):
            TrainConfig(**given)
