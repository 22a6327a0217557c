"""The recipes of pretraining in ``configs``: each describes a model, and takes a step."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertfam_tf import models
from bertfam_tf.config import PretrainRecipe, load_recipe
from bertfam_tf.train import pretrain

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file
    for file in ROOT.glob("configs/*/*.yaml")
    if "\n  family: " in file.read_text("utf-8") and file.parent.name in models.families()
)
WORDS = [*"abcdefghijklmnopqrstuvwxyz", ".", "good", "bad", "film", "plot"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<eos>", "<|endoftext|>"]
TEXT = "\n".join(f"good film {letter} .\nbad plot {letter} .\n" for letter in "abcdefgh")


def _name(file):
    return f"{file.parent.name}/{file.stem}"


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


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_a_step(file, tmp_path):
    """On a few sentences, with a small model of one layer; all else is the recipe's."""
    recipe = load_recipe(file, kind=PretrainRecipe)
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    (tmp_path / "text").write_text(TEXT)
    text = [str(tmp_path / "text")]
    data = recipe.data
    files = dict.fromkeys(data.train, text) if isinstance(data.train, dict) else text
    pairs = dict.fromkeys(data.train_translations, text * 2)
    few = {
        "output": str(tmp_path / "run"),
        "prompts": [],
        "model.tokenizer": str(tmp_path / "pieces"),
        "model.checkpoint": None,
        "model.size": "tiny",
        "model.overrides": {"num_layers": 1},
        "data.train": files,
        "data.dev": files,
        "data.train_translations": pairs,
        "data.dev_translations": pairs,
        "data.length": 16,
        "data.shuffle": 8,
        "train.epochs": 1,
        "train.batch_size": 2,
    }
    if recipe.stages:
        few["stages"] = [{"steps": 1, "length": 16 + i} for i in range(len(recipe.stages))]
    elif data.format != "stream":
        few["train.steps"] = 1
    overrides = [f"{key}={json.dumps(value)}" for key, value in few.items()]
    found = pretrain(load_recipe(file, overrides, PretrainRecipe))
    losses = [value for value in found.values() if isinstance(value, float)]
    assert losses
    assert np.isfinite(losses).all()
