"""Language models on streams: the memory is carried, and a recipe trains from nothing."""

import json
import os
import signal

import keras
import numpy as np
import pytest
import yaml

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.cli import main
from bertfam_tf.corpora import segments
from bertfam_tf.training import StreamLM
from bertfam_tf.training.callbacks.backup import Backup
from tests.seeding import seed
from tests.selection import only_in

SMALL = dict(
    vocab_size=20,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=16,
    dropout=0.0,
)
TXL = dict(cutoffs=[8], embedding_size=16, head_size=8, mem_len=64, same_length=False, clamp_len=-1)
TEXT = "the cat sat on the mat and the dog sat on the cat\n" * 8


def _learner(family, **overrides):
    seed(2)
    backbone = bf.build(family, "tiny", **{**SMALL, **overrides})
    rng = np.random.default_rng(0)
    for variable in backbone.weights:
        variable.assign_add(rng.normal(0, 0.3, variable.shape))
    head = heads.build(backbone, "causal_lm")
    learner = StreamLM(backbone, head)
    learner.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    return learner


IDS = np.random.default_rng(1).integers(0, 20, 60).astype("int32")


@pytest.mark.extended
def test_tokens_must_not_see_the_ones_that_they_predict():
    with pytest.raises(ValueError, match="must be causal, got xlnet with attn_type 'bi'"):
        _learner("xlnet")
    perplexity = _learner("xlnet", attn_type="uni").perplexity({"a": IDS}, verbose=False)
    assert perplexity["a"] > 20


@pytest.mark.full
def test_segments_with_a_memory_are_as_good_as_the_whole():
    learner = _learner("transformer_xl", **TXL)
    whole = learner.perplexity({"a": IDS}, length=59, verbose=False)
    assert set(whole) == {"a"}
    for length in (1, 7, 30):
        found = learner.perplexity({"a": IDS}, length=length, verbose=False)
        assert found["a"] == pytest.approx(whole["a"], rel=1e-5)
    found = learner.evaluate(segments(IDS, 1, 7), return_dict=True, verbose=0)
    assert found["perplexity"] == pytest.approx(whole["a"], rel=1e-5)


@pytest.mark.extended
def test_a_backbone_in_another_precision_than_the_global_policy():
    learner = _learner("transformer_xl", **TXL, dtype="mixed_float16")
    exact = _learner("transformer_xl", **TXL)
    assert isinstance(learner.optimizer, keras.optimizers.LossScaleOptimizer)
    losses = [
        each.evaluate(segments(IDS, 2, 7), return_dict=True, verbose=0)["loss"]
        for each in (learner, exact)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-2)
    learner.fit(segments(IDS, 2, 7), verbose=0)


@pytest.mark.full
@pytest.mark.parametrize(("family", "overrides"), [("gpt2", {}), ("transformer_xl", TXL)])
def test_without_a_memory_segments_are_worse_off(family, overrides):
    learner = _learner(family, **{**overrides, **({"mem_len": 0} if overrides else {})})
    whole = learner.perplexity({"a": IDS}, length=59, verbose=False)["a"]
    assert learner.perplexity({"a": IDS}, length=7, verbose=False)["a"] != pytest.approx(whole)


@pytest.mark.full
def test_corpora_do_not_see_each_other():
    learner = _learner("transformer_xl", **TXL)
    found = learner.perplexity({"a": IDS, "b": IDS[:30]}, length=7, verbose=False)
    assert found["b"] == learner.perplexity({"b": IDS[:30]}, length=7, verbose=False)["b"]
    losses = np.log([found["a"], found["b"]]) @ [59, 29] / 88
    assert np.log(found["all"]) == pytest.approx(losses)


@pytest.mark.full
def test_fit_learns_and_leaves_the_order_alone():
    learner = _learner("transformer_xl", **TXL)
    stream = segments(np.tile(np.arange(20), 30).astype("int32"), 3, 16)
    first, *_, last = learner.fit(stream, epochs=6, verbose=0).history["loss"]
    assert last < first / 2


# bertfam pretrain -----------------------------------------------------------------------------


def _recipe(tmp_path, **changes):
    (tmp_path / "text").write_text(TEXT)
    if not (tmp_path / "words").exists():
        words = ["vocabulary", "words", "--input", str(tmp_path / "text")]
        assert main([*words, "--output", str(tmp_path / "words")]) == 0
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {
            "family": "transformer_xl",
            "size": "tiny",
            "tokenizer": str(tmp_path / "words"),
            "overrides": {k: v for k, v in {**SMALL, **TXL}.items() if k != "vocab_size"}
            | {"cutoffs": [3]},
        },
        "data": {
            "train": [str(tmp_path / "text")],
            "dev": [str(tmp_path / "text")],
            "end": "<eos>",
            "length": 8,
        },
        "train": {"epochs": 4, "batch_size": 2, "learning_rate": 0.03},
        "prompts": ["the cat"],
    }
    for key, value in changes.items():
        recipe[key] = value
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return str(tmp_path / "recipe.yaml")


@pytest.mark.full
def test_a_recipe_from_nothing_to_text(tmp_path, capsys):
    recipe = _recipe(tmp_path)
    assert main(["pretrain", recipe]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    history = np.genfromtxt(tmp_path / "run" / "history.csv", delimiter=",", names=True)
    assert metrics["perplexity"] == pytest.approx(history["val_perplexity"][-1], rel=1e-5)
    assert metrics["perplexity"] < history["val_perplexity"][0] < 20
    assert set(metrics["samples"]) == {"the cat"}
    task = bf.load(tmp_path / "run" / "model")
    assert task.generate("the cat", max_new_tokens=5, seed=0)
    # What is done is not done again; another recipe is not mixed in.
    assert main(["pretrain", recipe]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == metrics
    assert main(["pretrain", recipe, "train.epochs=5"]) == 2
    assert "has a run with other settings" in capsys.readouterr().err
    by_tokens = ["train.batch_size=null", "train.batch_tokens=64", f"output={tmp_path / 'other'}"]
    assert main(["pretrain", recipe, *by_tokens]) == 2
    assert "train.batch_tokens must be null for pretraining" in capsys.readouterr().err


class Killed(BaseException):
    """What no code handles."""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("way", "step", "done"),
    [
        # An epoch has 7 steps; its last checkpoint is written after all other callbacks.
        pytest.param("killed", 5, 3, marks=pytest.mark.full),
        pytest.param("killed", 14, 12, marks=pytest.mark.full),
        ("killed", 12, 12),
        # A signal ends a run after the next step.
        pytest.param("terminated", 10, 11, marks=pytest.mark.full),
    ],
)
def test_a_run_that_ended_early_goes_on(tmp_path, monkeypatch, way, step, done):
    """The steps after a checkpoint read the memory that it stored."""
    # Dropout, so that a run depends on its random state as well.
    overrides = ["train.backup_steps=3", "train.epochs=2", "model.overrides.dropout=0.1"]
    recipe = [_recipe(tmp_path), *overrides]
    assert main(["pretrain", *recipe]) == 0
    original, steps = Backup.on_train_batch_end, []

    def end(self, batch, logs=None):
        original(self, batch, logs)
        steps.append(self.batches)
        if self.batches == step and way == "killed":
            raise Killed
        if self.batches == step:
            os.kill(os.getpid(), signal.SIGTERM)

    again = [*recipe, f"output={tmp_path / 'again'}"]
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_train_batch_end", end)
        with pytest.raises((Killed, SystemExit)):
            main(["pretrain", *again])
        step = None
        steps.clear()
        assert main(["pretrain", *again]) == 0
    assert steps == list(range(done + 1, 15))
    first, second = (bf.load(tmp_path / name / "model").weights for name in ("run", "again"))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.extended
@only_in("full", "gpt2-overrides1")
@pytest.mark.parametrize(
    ("family", "overrides"),
    [("transformer_xl", TXL), ("gpt2", {"attention_dropout": 0.0, "embedding_dropout": 0.0})],
)
def test_micro_batches_are_the_whole_batch(family, overrides):
    """Also in later steps, whose memory the micro-batches of the step before left."""
    weights, losses = [], []
    for steps in (1, 2, 3):
        learner = _learner(family, **overrides)
        learner.compile(keras.optimizers.SGD(0.1), accumulation_steps=steps)
        batches = segments(IDS, 3, 5)
        losses.append(learner.fit(batches, epochs=2, verbose=0).history["loss"])
        weights.append([np.array(weight) for weight in learner.weights])
    np.testing.assert_allclose(losses[1:], losses[:1] * 2, rtol=1e-5)
    for found in weights[1:]:
        for a, b in zip(found, weights[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_an_evaluation_between_two_steps_changes_nothing():
    weights = []
    for evaluated in (False, True):
        learner = _learner("transformer_xl", **TXL)
        batches = segments(IDS, 2, 7)
        learner.fit(batches.take(2), verbose=0)
        if evaluated:
            learner.evaluate(segments(IDS[::-1].copy(), 1, 7), verbose=0)
        learner.fit(batches.skip(2), verbose=0)
        weights.append([np.array(weight) for weight in learner.weights])
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.full
def test_a_recipe_accumulates_and_stops_by_perplexity(tmp_path, capsys):
    recipe = _recipe(tmp_path)
    given = ["train.accumulation_steps=2", "train.patience=1", "train.monitor=perplexity"]
    assert main(["pretrain", recipe, *given, "train.epochs=2"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    history = np.genfromtxt(tmp_path / "run" / "history.csv", delimiter=",", names=True)
    assert metrics["perplexity"] == pytest.approx(history["val_perplexity"].min(), rel=1e-5)


@pytest.mark.extended
def test_mistakes_are_named(tmp_path, capsys):
    recipe = _recipe(tmp_path)
    for override, message in (
        ("model.famly=gpt2", "Unknown key in section model 'famly'"),
        ("data.end=</s>", "no token '</s>'"),
        ("model.family=bert", "bert is not causal"),
        ("model.family=xlnet", "permutation_lm_head of xlnet does not predict the next token"),
        ("data.length=0", "data.length must be at least 1, got 0."),
        ("model.family=gpt2 data.length=2000", "data.length must be at most the 1024 positions"),
        ('data.train_translations={"en-fr":[a]}', "data.dev_translations must be empty for data"),
    ):
        overrides = override.split()
        if "family" in override:
            overrides.append("model.overrides={}")
        assert main(["pretrain", recipe, *overrides]) == 2
        assert message in capsys.readouterr().err
