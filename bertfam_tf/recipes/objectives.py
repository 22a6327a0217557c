"""Builds the network and the objectives of a recipe of pretraining on sentences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import heads, models, registry
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.corpora import Masking, Permutation, geometric, ngrams
from bertfam_tf.corpora.examples import PAIR_FORMATS
from bertfam_tf.corpora.languages import position_ids
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.objectives import (
    MaskedTokens,
    PairLabels,
    PermutedTokens,
    ReplacedTokens,
    SpanBoundary,
    TranslatedTokens,
    replaced_tokens_network,
    span_boundary_head,
)
from bertfam_tf.objectives.objective import Objective
from bertfam_tf.recipes import pretrained
from bertfam_tf.recipes.directory import model_source
from bertfam_tf.recipes.schema import MaskingConfig, NewModelConfig, PretrainRecipe
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.learner import Learner

OBJECTIVES = ("mlm", "nsp", "sop", "sbo", "rtd", "plm", "tlm")
# Objectives of families that a recipe of sentences does not train, and where they are trained.
_ELSEWHERE = {
    "clm": "needs data.format: stream",
    "bilm": "needs data.format: sentences",
    "distillation": "is for bertfam distill, with a recipe of its own",
}
# Objectives that replace mlm, and why.
_ALONE = {
    "rtd": "trains its generator with mlm itself",
    "plm": "predicts tokens that are not masked",
}
# Losses are named after their heads.
_LOSSES = {"mlm": "masked_lm"}
# Layers that generator and discriminator share if their sizes agree (arXiv 2003.10555, section
# 3.2).
_SHARED = ("token_embedding", "segment_embedding", "position_embedding", "embedding_norm")


_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pretraining(pretrained.Pretrained):
    """A model and its training.

    Fields:
        learner: the Keras model to fit.
        masking: masks the inputs.
        batch: converts a batch of ``Examples`` to the learner's inputs, targets and weights.
    """

    learner: Learner
    masking: Masking
    batch: Callable[..., tuple]


def build(
    recipe: PretrainRecipe, tokenizer: Tokenizer, backbone: Backbone | None = None
) -> Pretraining:
    """Builds the model and the objectives of a recipe.

    Args:
        recipe: a recipe of pretraining on sentences.
        tokenizer: the model's tokenizer.
        backbone: the model; None for a new one with random weights.

    Raises:
        ValueError: if an objective is unknown, excludes another one, or does not fit the family,
            format or tokenizer; or the checkpoint is of another model.
    """
    check(recipe)
    model = recipe.model
    fields, config = {"vocab_size": tokenizer.vocab_size}, registry.get(model.family).config
    if "pad" in tokenizer.special_ids and hasattr(config, "pad_id"):
        # The family's default is the id in its published vocabulary.
        fields["pad_id"] = tokenizer.special_ids["pad"]
    fields |= model.overrides
    if recipe.stages and recipe.stages[0].layers is not None:
        fields["num_layers"] = recipe.stages[0].layers
    if isinstance(recipe.data.train, dict) and hasattr(config, "num_languages"):
        fields.setdefault("num_languages", len(recipe.data.train))
    if backbone is None:
        backbone, fill = start(
            model, fields, pairs=not {"nsp", "sop"}.isdisjoint(recipe.objectives)
        )
        built = _network(recipe, backbone, fields, tokenizer)
        fill(built.heads)
        if model.checkpoint is not None:
            pretrained.fill_rest(model_source(model.checkpoint), built)
        pretrained.check_format(backbone)
        return built
    return _network(recipe, backbone, fields, tokenizer)


def start(
    model: NewModelConfig, fields: Mapping[str, Any], *, pairs: bool = False
) -> tuple[Backbone, Callable[[Mapping[str, heads.Head]], None]]:
    """Returns the model that a recipe starts from.

    Args:
        model: the ``model`` section of the recipe.
        fields: config fields that differ from the model's size.
        pairs: whether an objective reads the pooler, which is new if the checkpoint has none.

    Returns:
        The model with random weights or the checkpoint's, and a function that fills heads from the
        checkpoint.

    Raises:
        ValueError: if the checkpoint is of another model; the error names the difference.
    """
    if model.checkpoint is None:
        return models.build(model.family, model.size, **fields), lambda heads: None
    config = models.config_of(model.family, model.size, **fields).to_dict()
    if "pooler" not in fields:
        config.pop("pooler", None)  # missing in checkpoints whose heads do not read it
    path = model_source(model.checkpoint)
    checkpoint = Checkpoint(path, model.family, **config)

    def fill(new_heads: Mapping[str, heads.Head]) -> None:
        for name, head in new_heads.items():
            if checkpoint.has_head(name):
                checkpoint.fill_head(head, name)
            else:
                _log.info("The %s head is initialized at random: %s has none.", name, path)

    new_pooler = pairs and "pooler" not in fields and checkpoint.lacks_pooler
    if new_pooler:
        _log.info("The pooler is initialized at random: %s has none.", path)
    return checkpoint.backbone(new_pooler=new_pooler), fill


def _network(
    recipe: PretrainRecipe, backbone: Backbone, fields: dict[str, Any], tokenizer: Tokenizer
) -> Pretraining:
    weights = recipe.objectives
    if "plm" in weights:
        return _permuted_tokens(recipe, backbone, tokenizer)
    masking = _masking(recipe.masking, tokenizer)
    if "rtd" in weights:
        return _replaced_tokens(recipe, backbone, fields, masking)
    family_heads: dict[str, heads.Head] = {}
    other_heads: dict[str, Any] = {}
    objectives: list[Objective] = []
    if "tlm" in weights:
        for name in ("position_ids", "language_ids"):
            if name not in backbone.token_inputs:
                raise ValueError(
                    f"{backbone.family} has no input {name}, which the objective tlm needs."
                )
        family_heads["masked_lm"] = _head(backbone, "masked_lm", "tlm")
        losses = {_LOSSES.get(name, name): weight for name, weight in weights.items()}
        objectives.append(TranslatedTokens(family_heads["masked_lm"], losses))
        weights = {}
    for name, weight in weights.items():
        if name == "mlm":
            family_heads["masked_lm"] = _head(backbone, "masked_lm", name)
            objectives.append(MaskedTokens(family_heads["masked_lm"], weight))
        elif name == "sbo":
            other_heads[name] = span_boundary_head(backbone)
            objectives.append(SpanBoundary(other_heads[name], weight))
        else:
            family_heads["pair"] = _head(backbone, "pair", name)
            objectives.append(PairLabels(family_heads["pair"], weight))
    outputs = {"sequence_output", *(head.reads for head in family_heads.values())}
    inputs = _inputs(backbone, recipe)
    learner = Learner(inputs, backbone(inputs, outputs=outputs), objectives)
    return Pretraining(
        backbone=backbone,
        heads=family_heads,
        other_heads=other_heads,
        learner=learner,
        masking=masking,
        batch=_with_inputs(inputs),
    )


def check(recipe: PretrainRecipe) -> None:
    """Checks the objectives of a recipe, and the settings that they need.

    Raises:
        ValueError: if an objective is unknown, or settings do not fit.
    """
    names = list(recipe.objectives)
    for name in names:
        if name in _ELSEWHERE:
            raise ValueError(
                f"The objective {name} {_ELSEWHERE[name]}; data.format is {recipe.data.format}."
            )
        if name not in OBJECTIVES:
            raise ValueError(unknown("objective", name, OBJECTIVES))
    if not names:
        raise ValueError("objectives must name at least one loss.")
    if {"nsp", "sop"} <= set(names):
        raise ValueError("objectives must have either nsp or sop, got both.")
    for name, reason in _ALONE.items():
        if name in names and len(names) > 1:
            raise ValueError(f"{name} {reason}, and cannot be combined with other objectives.")
    if "tlm" in names and set(names) - {"tlm", "mlm"}:
        raise ValueError(f"tlm can only be combined with mlm, got {', '.join(names)}.")
    data = recipe.data
    if {bool(data.train_translations), bool(data.dev_translations)} != {"tlm" in names}:
        raise ValueError(
            "data.train_translations and data.dev_translations are required by tlm and allowed "
            f"only with it; objectives are {', '.join(names)}."
        )
    by_language = isinstance(data.train, dict)
    if by_language != isinstance(data.dev, dict):
        raise ValueError("data.train and data.dev must both be lists of files, or both tables.")
    if "tlm" in names and not by_language:
        raise ValueError("data.train must be a table of files by language for tlm, got a list.")
    if names == ["tlm"] and any(data.train.values() if isinstance(data.train, dict) else ()):
        raise ValueError("Lists of files in data.train must be empty for tlm without mlm.")
    if "rtd" in names and any(stage.layers is not None for stage in recipe.stages):
        raise ValueError(
            "stages[i].layers must be null or omitted for rtd, whose generator would not grow."
        )
    if {"nsp", "sop"} & set(names) and recipe.data.format not in PAIR_FORMATS:
        raise ValueError(
            f"data.format must be {' or '.join(PAIR_FORMATS)} for nsp and sop, "
            f"got {recipe.data.format}."
        )
    if "sbo" in names and recipe.masking.unit != "span":
        raise ValueError(f"masking.unit must be span for sbo, got {recipe.masking.unit}.")


def _inputs(backbone: Backbone, recipe: PretrainRecipe) -> dict[str, Any]:
    inputs = backbone.token_inputs
    available = ["token_ids", "padding_mask", "segment_ids", "position_ids"]
    if isinstance(recipe.data.train, dict):
        available.append("language_ids")
    elif "language_ids" in inputs:
        raise ValueError(
            f"{backbone.family} has the input language_ids: data.train must be a table of files by "
            "language, such as {en: [en.txt], fr: [fr.txt]}."
        )
    for name in inputs:
        if name not in available:
            raise ValueError(
                f"{backbone.family} has the input {name}, which text files do not provide."
            )
    return inputs


def _with_inputs(names: Collection[str]) -> Callable[..., tuple]:
    """Returns a function that selects a model's inputs from a batch."""

    def batch(inputs: Mapping[str, tf.Tensor], targets: Any, weights: tf.Tensor) -> tuple:
        if "position_ids" in names and "position_ids" not in inputs:
            inputs = {**inputs, "position_ids": position_ids(inputs["padding_mask"])}
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
    lengths = {"ngram": ngrams(config.longest), "span": geometric()}.get(config.unit, [1.0])
    return Masking(
        tokenizer,
        config.rate,
        {"piece": "piece", "tagged": "given"}.get(config.unit, "word"),
        lengths,
        masked=config.masked,
        random=config.random,
        together=config.unit == "span",
        max_predictions=config.max_predictions,
        words=config.words,
    )


def _permuted_tokens(
    recipe: PretrainRecipe, backbone: Backbone, tokenizer: Tokenizer
) -> Pretraining:
    head = _head(backbone, "permutation_lm", "plm")
    names = _inputs(backbone, recipe)
    inputs = {name: backbone.input[name] for name in (*names, "perm_mask", "target_mapping")}
    # Tokens are predicted in place, without masks.
    masking = _masking(replace(recipe.masking, masked=0.0, random=0.0), tokenizer)
    permutation = Permutation(masking)
    select = _with_inputs(names)

    def batch(
        inputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor], weights: tf.Tensor
    ) -> tuple:
        hidden, mapping = permutation.order(
            inputs["token_ids"],
            targets["positions"],
            weights,
            targets["seeds"],
            inputs["padding_mask"],
        )
        selected, _, _ = select(inputs, targets, weights)
        selected |= {"perm_mask": hidden, "target_mapping": mapping}
        return selected, {"token_ids": targets["token_ids"]}, weights

    objective = PermutedTokens(head, recipe.objectives["plm"])
    learner = Learner(inputs, backbone(inputs, outputs={head.reads}), [objective])
    return Pretraining(
        backbone=backbone,
        heads={"permutation_lm": head},
        learner=learner,
        masking=masking,
        batch=batch,
    )


def _quarter(backbone: Backbone) -> dict[str, int]:
    """Returns the fields of a generator with a quarter of a model's attention heads and width.

    A quarter to a half of the discriminator's size is best (arXiv 2003.10555, section 3.2).
    """
    config = backbone.config
    count = max(config.num_heads // 4, 1)
    fields = {
        "num_heads": count,
        "hidden_size": config.hidden_size * count // config.num_heads,
        "intermediate_size": max(config.intermediate_size * count // config.num_heads, 1),
    }
    described = ", ".join(f"{name} {value}" for name, value in fields.items())
    _log.info("The recipe has no section generator: the generator has %s.", described)
    return fields


def _replaced_tokens(
    recipe: PretrainRecipe, backbone: Backbone, fields: dict[str, Any], masking: Masking
) -> Pretraining:
    family, size = recipe.model.family, recipe.model.size
    config = registry.get(family).config
    sizes = registry.get(family).sizes[size]
    # Weights are stored by their paths, which must differ from the discriminator's.
    with keras.name_scope(pretrained.GENERATOR):
        generator = Backbone(
            family,
            config.from_dict({**sizes, **fields, **(recipe.generator or _quarter(backbone))}),
            parts=backbone.parts.subset(*(name for name in _SHARED if name in backbone.parts)),
            name=pretrained.GENERATOR,
        )
        generator_head = heads.build(generator, "masked_lm")
    head = _head(backbone, "rtd", "rtd")
    inputs, outputs = replaced_tokens_network(
        generator, generator_head, backbone, recipe.train.seed
    )
    objective = ReplacedTokens(generator_head, head, recipe.objectives["rtd"])

    names = _inputs(backbone, recipe)

    def batch(
        inputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor], weights: tf.Tensor
    ) -> tuple:
        selected = {name: inputs[name] for name in names}
        selected |= {"positions": targets["positions"], "weights": weights}
        return selected, {name: targets[name] for name in ("token_ids", "originals")}

    learner = Learner(inputs, outputs, [objective])
    return Pretraining(
        backbone=backbone,
        heads={"rtd": head},
        generator=(generator, generator_head),
        learner=learner,
        masking=masking,
        batch=batch,
    )
