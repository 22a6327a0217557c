"""Ranges and choices of settings: what is refused, and in which words."""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass, field

import numpy as np
import pytest

from bertfam_tf.corpora.settings import CorpusConfig, MaskingConfig
from bertfam_tf.data.settings import DataConfig
from bertfam_tf.distill.settings import AugmentationConfig, DistillStage, StudentConfig
from bertfam_tf.plan import Devices
from bertfam_tf.recipes import schema
from bertfam_tf.training.settings import Stage, TrainConfig
from bertfam_tf.validation import Rule, check, in_range, one_of, rules, setting


@dataclass(frozen=True)
class Settings:
    epochs: int = setting(3, at_least=1)
    rate: float = setting(0.1, above=0, at_most=1)
    decay: float | None = setting(None, at_least=0, below=1)
    schedule: str = setting("linear", choices=("linear", "cosine", "constant"))
    weights: dict[str, float] = setting(default_factory=dict, at_least=0)
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self):
        check(self, "train")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"epochs": 0}, "train.epochs must be at least 1, got 0."),
        ({"epochs": 2.5}, "train.epochs must be a number|an integer, got 2.5."),
        ({"epochs": True}, "train.epochs must be an integer, got True."),
        ({"epochs": None}, "train.epochs must be an integer, got None."),
        ({"rate": 0}, "train.rate must be above 0 and at most 1, got 0."),
        ({"rate": math.nan}, "train.rate must be above 0 and at most 1 and finite, got nan."),
        ({"rate": "1"}, "train.rate must be a number, got '1'."),
        ({"decay": 1.0}, "train.decay must be at least 0 and below 1, got 1.0."),
        ({"schedule": "cosin"}, "one of linear, cosine, constant, got 'cosin'. Did you mean 'cos"),
        ({"weights": {"mlm": -1}}, "train.weights.mlm must be at least 0, got -1."),
    ],
    ids=str,
)
def test_errors(values, error):
    with pytest.raises(ValueError, match=error):
        Settings(**values)


def test_what_is_accepted():
    Settings(np.int64(1), np.float32(0.5), None, "cosine", {"mlm": 0, "nsp": 10**400})
    assert rules(Settings)["rate"] == Rule(above=0, at_most=1)
    assert str(rules(Settings)["schedule"]) == "one of linear, cosine, constant"


def test_a_value_is_cut():
    """Numbers and names from files may be megabytes long."""
    with pytest.raises(ValueError, match="must be from 0 to 1, got 1000") as caught:
        in_range("x", 10**4000, at_least=0, at_most=1)
    assert len(str(caught.value)) < 100
    with pytest.raises(ValueError, match="must be a or b, got 'cccc") as caught:
        one_of("x", "c" * 10**6, ("a", "b"))
    assert len(str(caught.value)) < 300


SECTIONS = [
    *(AugmentationConfig, CorpusConfig, DataConfig, Devices, DistillStage, MaskingConfig, Stage),
    *(StudentConfig, TrainConfig, schema.DistillRecipe, schema.ModelConfig, schema.MultiTaskRecipe),
    *(schema.PretrainRecipe, schema.Recipe, schema.TaskConfig),
]


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_every_number_of_a_recipe_has_a_range(kind):
    """And every name that code distinguishes has choices, which the schema lists."""
    declared = rules(kind)
    # Columns are numbers or names; blocks are a number or "backbone".
    free = {"text", "text_pair", "label", "columns", "frozen", "layers", "share"}
    for each in dataclasses.fields(kind):
        numbers = {"int", "float"} & set(each.type.replace("[", " ").replace("]", " ").split())
        if numbers and each.name not in free:
            assert each.name in declared, each.name
        required = kind is Stage and each.name == "steps"
        if each.name in declared and each.default not in (
            None,
            dataclasses.MISSING,
            *[0] * required,
        ):
            declared[each.name].check(each.name, each.default)
    assert typing.get_type_hints(kind)
