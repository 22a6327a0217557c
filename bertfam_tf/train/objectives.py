"""The network and the objectives that a recipe of pretraining on sentences names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import heads, models, registry
from bertfam_tf.config import MaskingConfig, PretrainRecipe
from bertfam_tf.learner import Learner, Objective, PerplexityTracker
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.objectives import (
    MaskedTokens,
    Masking,
    PairLabels,
    ReplacedTokens,
    SpanBoundary,
    geometric,
    ngrams,
    replaced_tokens_network,
    span_boundary_head,
)
from bertfam_tf.objectives.examples import PAIR_FORMATS
from bertfam_tf.text import Tokenizer

OBJECTIVES = ("masked_lm", "nsp", "sop", "sbo", "rtd")
# What a generator has in common with its discriminator, where the sizes agree (arXiv 2003.10555,
# section 3.2).
_SHARED = ("token_embedding", "segment_embedding", "position_embedding", "embedding_norm")


class MaskedLearner(Learner):
    tracker = PerplexityTracker


@dataclass(frozen=True)
class Pretraining:
    """What is trained.

    Fields:
        backbone: the model that is kept.
        heads: those of its heads that a checkpoint can have, by name.
        learner: is fitted on what ``batch`` returns.
        masking: of the inputs.
        batch: from a batch of ``Examples`` to one of the learner.
    """

    backbone: Backbone
    heads: Mapping[str, heads.Head]
    learner: Learner
    masking: Masking
    batch: Callable[..., tuple]


def build(
    recipe: PretrainRecipe, tokenizer: Tokenizer, backbone: Backbone | None = None
) -> Pretraining:
    """A model, and the objectives that the recipe names.

    Args:
        recipe: of sentences.
        tokenizer: of the model.
        backbone: the model; None for a new one with random weights.

    Raises:
        ValueError: for an unknown objective, objectives that exclude each other, or one that the
            family, the format or the tokenizer does not allow.
    """
    _check(recipe)
    model, weights = recipe.model, recipe.objectives
    fields = {"vocab_size": tokenizer.vocab_size, **model.overrides}
    if recipe.stages:
        fields["num_layers"] = recipe.stages[0].layers
    if backbone is None:
        backbone = models.build(model.family, model.size, **fields)
    masking = _masking(recipe.masking, tokenizer)
    if "rtd" in weights:
        return _replaced_tokens(recipe, backbone, fields, masking)
    made: dict[str, heads.Head] = {}
    objectives: list[Objective] = []
    for name, weight in weights.items():
        if name == "masked_lm":
            made[name] = _head(backbone, name, name)
            objectives.append(MaskedTokens(made[name], weight))
        elif name == "sbo":
            objectives.append(SpanBoundary(span_boundary_head(backbone), weight))
        else:
            made["pair"] = _head(backbone, "pair", name)
            objectives.append(PairLabels(made["pair"], weight))
    outputs = {"sequence_output", *(head.reads for head in made.values())}
    inputs = _inputs(backbone)
    kind = MaskedLearner if list(weights) == ["masked_lm"] else Learner
    learner = kind(inputs, backbone(inputs, outputs=outputs), objectives)
    return Pretraining(backbone, made, learner, masking, _with_inputs(inputs))


def _check(recipe: PretrainRecipe) -> None:
    names = list(recipe.objectives)
    for name in names:
        if name == "causal_lm":
            raise ValueError(
                f"data.format must be stream for the objective causal_lm, got {recipe.data.format}."
            )
        if name not in OBJECTIVES:
            raise ValueError(unknown("objective", name, OBJECTIVES))
    if not names:
        raise ValueError("objectives must name at least one loss.")
    if {"nsp", "sop"} <= set(names):
        raise ValueError("objectives must have either nsp or sop, got both.")
    if "rtd" in names and len(names) > 1:
        raise ValueError("rtd trains its generator with masked_lm itself, and allows no other.")
    if "rtd" in names and recipe.stages:
        raise ValueError("stages must be empty for rtd, whose generator would not grow.")
    if {"nsp", "sop"} & set(names) and recipe.data.format not in PAIR_FORMATS:
        raise ValueError(
            f"data.format must be {' or '.join(PAIR_FORMATS)} for nsp and sop, "
            f"got {recipe.data.format}."
        )
    if "sbo" in names and recipe.masking.unit != "span":
        raise ValueError(f"masking.unit must be span for sbo, got {recipe.masking.unit}.")


def _inputs(backbone: Backbone) -> dict[str, Any]:
    inputs = backbone.token_inputs
    for name in inputs:
        if name not in ("token_ids", "padding_mask", "segment_ids"):
            raise ValueError(f"{backbone.family} has the input {name}, which text files do not.")
    return inputs


def _with_inputs(names: Collection[str]) -> Callable[..., tuple]:
    """Batches without the inputs that a model does not have."""

    def batch(inputs: Mapping[str, tf.Tensor], targets: Any, weights: tf.Tensor) -> tuple:
        return {name: inputs[name] for name in names}, targets, weights

    return batch


def _head(backbone: Backbone, name: str, objective: str) -> heads.Head:
    if name not in registry.get(backbone.family).heads:
        raise ValueError(
            f"{backbone.family} has no {name} head, which the objective {objective} trains."
        )
    labels = registry.get(backbone.family).heads[name].has_labels
    return heads.build(backbone, name, 2 if labels else None)


def _masking(config: MaskingConfig, tokenizer: Tokenizer) -> Masking:
    lengths = {"ngram": ngrams(), "span": geometric()}.get(config.unit, [1.0])
    return Masking(
        tokenizer,
        config.rate,
        "piece" if config.unit == "piece" else "word",
        lengths,
        masked=config.masked,
        random=config.random,
        together=config.unit == "span",
    )


def _replaced_tokens(
    recipe: PretrainRecipe, backbone: Backbone, fields: dict[str, Any], masking: Masking
) -> Pretraining:
    family, size = recipe.model.family, recipe.model.size
    config = registry.get(family).config
    sizes = registry.get(family).sizes[size]
    # Weights are stored by their paths, which must differ from the discriminator's.
    with keras.name_scope("generator"):
        generator = Backbone(
            family,
            config.from_dict({**sizes, **fields, **recipe.generator}),
            parts=backbone.parts.subset(*(name for name in _SHARED if name in backbone.parts)),
            name="generator",
        )
        generator_head = heads.build(generator, "masked_lm")
    head = _head(backbone, "rtd", "rtd")
    inputs, outputs = replaced_tokens_network(
        generator, generator_head, backbone, recipe.train.seed
    )
    objective = ReplacedTokens(generator_head, head, recipe.objectives["rtd"])

    names = _inputs(backbone)

    def batch(
        inputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor], weights: tf.Tensor
    ) -> tuple:
        given = {name: inputs[name] for name in names}
        given |= {"positions": targets["positions"], "weights": weights}
        return given, {name: targets[name] for name in ("token_ids", "originals")}

    learner = Learner(inputs, outputs, [objective])
    return Pretraining(backbone, {"rtd": head}, learner, masking, batch)
