"""The recipes of pretraining and distillation in ``configs``: models exist, and a step is taken."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import models
from bertfam_tf.recipes import distill, pretrain
from bertfam_tf.recipes.distillation import terms_of
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import DistillRecipe, PretrainRecipe
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file
    for file in ROOT.glob("configs/*/*.yaml")
    if "\n  family: " in file.read_text("utf-8") and file.parent.name in models.families()
)
DISTILLED = sorted(ROOT.glob("configs/distillation/*.yaml"))
WORDS = [*"abcdefghijklmnopqrstuvwxyz", ".", "good", "bad", "film", "plot"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<eos>", "<|endoftext|>"]
TEXT = "\n".join(f"good film {letter} .\nbad plot {letter} .\n" for letter in "abcdefgh")


def _name(file):
    return f"{file.parent.name}/{file.stem}"


def _is_for_gpus(file):
    """Whether ``tools.gpu_pretrain`` trains the recipe, on examples of its own."""
    return "tools.gpu_pretrain" in file.read_text("utf-8")


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_models_are_published_ones(file):
    recipe = load_recipe(file, kind=PretrainRecipe)
    model = recipe.model
    config = models.config_of(model.family, model.size, **model.overrides)
    assert model.family == file.parent.name
    most = getattr(config, "max_positions", None)
    lengths = [recipe.data.length, *(each.length or 0 for each in recipe.stages)]
    assert most is None or max(lengths) <= most
    if recipe.generator:
        models.config_of(model.family, model.size, **{**model.overrides, **recipe.generator})


@pytest.mark.full
@pytest.mark.parametrize("file", [x for x in FILES if not _is_for_gpus(x)], ids=_name)
def test_a_step(file, tmp_path):
    """On a few sentences, with a small model of one layer; all else is the recipe's."""
    recipe = load_recipe(file, kind=PretrainRecipe)
    characters, pieces = "characters", str(tmp_path / "pieces")
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    text = [str(tmp_path / name) for name in ("first", "second")]
    for each in text:
        Path(each).write_text(TEXT)
    data = recipe.data
    files = dict.fromkeys(data.train, text) if isinstance(data.train, dict) else text
    pairs = dict.fromkeys(data.train_translations, text)
    few = {
        "output": str(tmp_path / "run"),
        "prompts": [],
        "model.tokenizer": characters if recipe.model.tokenizer == characters else pieces,
        "model.checkpoint": None,
        "model.size": "tiny",
        "model.overrides": {"num_layers": 1},
        "data.train": files,
        "data.dev": files,
        "data.train_translations": pairs,
        "data.dev_translations": pairs,
        "data.length": 16,
        "train.batch_size": 2,
    }
    if data.format not in ("stream", "sentences"):
        few["data.shuffle"] = 8
    if recipe.stages:
        few["stages"] = [{"steps": 1, "length": 16 + i} for i in range(len(recipe.stages))]
    elif data.format != "stream":
        few["train.steps"] = 1
    if not recipe.stages:
        few["train.epochs"] = 1
    overrides = [f"{key}={json.dumps(value)}" for key, value in few.items()]
    found = pretrain(load_recipe(file, overrides, PretrainRecipe))
    losses = [value for value in found.values() if isinstance(value, float)]
    assert losses
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("file", DISTILLED, ids=_name)
def test_distillations_are_of_known_terms_and_students(file):
    recipe = load_recipe(file, kind=DistillRecipe)
    assert recipe.output == f"runs/{file.stem}"
    for stage in recipe.stages:
        assert terms_of(stage.terms)
    student = recipe.student
    if student.size is not None:
        models.config_of(student.family, student.size, **student.overrides)
    if student.path is not None:
        before = file.with_name(f"{student.path.split('/')[1]}.yaml")
        assert f"{load_recipe(before, kind=DistillRecipe).output}/model" == student.path


@pytest.mark.full
@pytest.mark.parametrize("file", DISTILLED, ids=_name)
def test_a_distillation(file, tmp_path):
    """On a few texts, with small models; terms, optimizers and augmentation are the recipe's."""
    recipe = load_recipe(file, kind=DistillRecipe)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    tokenizer = WordPieceTokenizer(tmp_path / "vocab.txt")
    # A multiple of 48, the number of relation heads; wider than students, for their embeddings.
    sizes = {"vocab_size": tokenizer.vocab_size, "num_layers": 2, "hidden_size": 192}
    data = recipe.data
    options = [list(data.labels.values())] if data.labels else []
    backbone = models.build("bert", "tiny", **sizes)
    getattr(bf, recipe.task)(backbone, tokenizer, *options).save(tmp_path / "teacher")
    student = dataclasses.replace(recipe.student, path=None, num_layers=2)
    if recipe.student.path is not None:
        student = dataclasses.replace(student, family="tinybert", size="tiny", layers="none")
    elif student.size is not None:
        student = dataclasses.replace(student, size="tiny")
    augmentation = recipe.augmentation
    if augmentation is not None:
        bf.MaskedLM(models.build("bert", "tiny", **sizes), tokenizer).save(tmp_path / "masked_lm")
        numbers = " 0.5" * 128
        (tmp_path / "vectors").write_text("".join(f"{word}{numbers}\n" for word in WORDS))
        vectors = str(tmp_path / "vectors")
        augmentation = dataclasses.replace(
            augmentation, masked_lm=str(tmp_path / "masked_lm"), word_vectors=vectors, copies=2
        )
        if student.word_vectors is not None:
            student = dataclasses.replace(student, word_vectors=vectors)
    columns = [name for name in (data.text, data.text_pair) if name and data.labels]
    rows = [[*columns, data.label]] if data.labels else []
    for line in TEXT.split("\n"):
        label = list(data.labels)[len(line) % 2] if data.labels else ""
        rows += [[*[line] * max(len(columns), 1), *[label] * bool(columns)]] if line else []
    (tmp_path / "rows.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    split = str(tmp_path / "rows.tsv")
    small = {"epochs": 1, "batch_size": 8, "accumulation_steps": 1}
    metrics = distill(
        dataclasses.replace(
            recipe,
            output=str(tmp_path / "run"),
            teacher=str(tmp_path / "teacher"),
            student=student,
            augmentation=augmentation,
            data=dataclasses.replace(data, train=split, dev=data.dev and split),
            max_length=16,
            stages=[
                dataclasses.replace(stage, train=dataclasses.replace(stage.train, **small))
                for stage in recipe.stages
            ],
        )
    )
    assert np.isfinite(list(metrics.values())).all()
    assert ("teacher_accuracy" in metrics) == (data.dev is not None)
