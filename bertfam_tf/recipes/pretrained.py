"""The results of pretraining: the model, its heads, and files that only pretraining reads.

A directory has a checkpoint in Hugging Face's format, or in this package's own format if Hugging
Face's cannot represent the model or its tokenizer. It may also have

* ``generator``, for replaced token detection: the generator, a complete checkpoint;
* ``pretraining_heads.safetensors``: weights by variable path of heads that the family does not
  have, such as SpanBERT's for span boundaries. No loader of models reads this file.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

import bertfam_tf
from bertfam_tf import heads, registry
from bertfam_tf.checkpoints import Checkpoint, fill, huggingface, safetensors
from bertfam_tf.heads import Head
from bertfam_tf.layers import filled_later
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.sources import (
    GENERATOR,
    PRETRAINING_HEADS,
    CheckpointError,
    UnrepresentableError,
    resolve,
)
from bertfam_tf.tasks import publish, storage
from bertfam_tf.text import Tokenizer

# The task that ``bf.load`` builds from a model in this package's format, by its head.
_TASKS = {"masked_lm": "MaskedLM", "permutation_lm": "CausalLM"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A pretrained model and its heads.

    Fields:
        backbone: the model.
        heads: the heads that the family defines, by name.
        other_heads: heads of objectives that the family does not define, by objective.
        generator: the generator of ``rtd`` and its head, or None.
    """

    backbone: Backbone
    heads: Mapping[str, Head] = field(default_factory=dict)
    other_heads: Mapping[str, keras.layers.Layer] = field(default_factory=dict)
    generator: tuple[Backbone, Head] | None = None


def check_format(backbone: Backbone) -> None:
    """Logs a warning if Hugging Face's format cannot represent a backbone."""
    try:
        huggingface.describe(registry.get(backbone.family), backbone.config)
    except UnrepresentableError as error:
        _warn(error)


def write(
    directory: Path,
    model: Pretrained,
    tokenizer: Tokenizer,
    *,
    length: int,
    languages: Mapping[str, int] | None = None,
) -> None:
    """Writes a pretrained model into an existing, empty directory.

    Args:
        directory: the directory.
        model: the trained model.
        tokenizer: its tokenizer.
        length: the maximum number of tokens of an input, if the model has no number of positions.
        languages: ids by language code, for a model with the input ``language_ids``.

    Raises:
        CheckpointError: if weights are not finite.
        OSError: if writing fails, for example because the disk is full.
    """
    if model.generator is not None:
        # A copy without the prefix of its paths, which distinguishes it from the discriminator.
        with filled_later():
            generator = Backbone(model.backbone.family, model.generator[0].config)
            head = heads.build(generator, model.generator[1].kind)
        for source, target in zip(model.generator, (generator, head), strict=True):
            for weight, value in _by_path(source).items():
                _by_path(target)[weight].assign(value)
        (directory / GENERATOR).mkdir()
        _write_model(directory / GENERATOR, generator, tokenizer, [head], length, languages)
    if model.other_heads:
        weights: dict[str, Any] = {}
        for other in model.other_heads.values():
            weights |= plain_weights(other)
        safetensors.write(weights, directory / PRETRAINING_HEADS)
    family_heads = list(model.heads.values())
    _write_model(directory, model.backbone, tokenizer, family_heads, length, languages)
    if model.other_heads:
        # safetensors creates files that only the owner can read.
        shutil.copymode(directory / safetensors.SINGLE, directory / PRETRAINING_HEADS)


def _write_model(
    directory: Path,
    backbone: Backbone,
    tokenizer: Tokenizer,
    family_heads: Sequence[heads.Head],
    length: int,
    languages: Mapping[str, int] | None,
) -> None:
    before = set(directory.iterdir())
    length = backbone.max_length or length
    try:
        publish.write(
            directory,
            backbone,
            tokenizer,
            family_heads,
            inputs=backbone.token_inputs,
            max_length=length,
            values={"lang2id": dict(languages)} if languages else None,
        )
        return
    except UnrepresentableError as error:
        _warn(error)
    for path in set(directory.iterdir()) - before:
        path.unlink()
    weights = plain_weights(backbone)
    for head in family_heads:
        weights |= plain_weights(head)
    names = [head.kind for head in family_heads]
    # A saved task needs a language, which this model leaves open.
    task = None if languages else next((_TASKS[name] for name in names if name in _TASKS), None)
    description = {
        "bertfam_tf": bertfam_tf.__version__,
        "task": task,
        "family": backbone.family,
        "config": backbone.config.to_dict(),
        "options": {"max_length": length},
        "heads": names,
        **({"languages": dict(languages)} if languages else {}),
    }
    storage.write(directory, weights, tokenizer, description)


def _warn(error: UnrepresentableError) -> None:
    # The cause only has the reason; the message also names the alternative.
    _log.warning(
        "%s The model is saved in this package's own format, which from_pretrained and "
        "load_backbone read, and transformers does not.",
        error.__cause__ or error,
    )


def fill_rest(path: str | Path, model: Pretrained) -> None:
    """Fills the generator and other heads from the directory of an earlier run.

    Args:
        path: the path of the model that the backbone was loaded from.
        model: the model to fill. Embeddings that a generator shares with its discriminator keep
            their values.

    Raises:
        CheckpointError: if the checkpoint has no generator, or another one.
    """
    directory = resolve(path)
    if model.generator is not None:
        _fill_generator(directory, *model.generator, model.backbone)
    file = directory / PRETRAINING_HEADS
    stored = safetensors.read_file(file) if file.is_file() else None
    for name, head in model.other_heads.items():
        paths = {weight.path: weight.path for weight in head.weights}
        if stored is None or stored.keys().isdisjoint(paths):
            _log.info("The %s head is initialized at random: %s has none.", name, directory)
            continue
        # The file may have other heads, whose objectives are not in this recipe.
        others = [re.escape(path) for path in stored if not path.startswith(f"{head.name}/")]
        fill(head.weights, stored, paths, others, f"{file} and the {name} head")


def _fill_generator(
    directory: Path, generator: Backbone, head: heads.Head, discriminator: Backbone
) -> None:
    folder = directory / GENERATOR
    if not folder.is_dir():
        raise CheckpointError(
            f"{directory} has no folder {GENERATOR} with the generator of rtd, such as a run of "
            "pretraining writes; put the generator's checkpoint there."
        )
    checkpoint = Checkpoint(folder, generator.family, **generator.config.to_dict())
    loaded = checkpoint.backbone()
    with filled_later():
        loaded_head = heads.build(loaded, head.kind)
    checkpoint.fill_head(loaded_head, head.kind)
    shared = {id(weight) for weight in discriminator.weights}
    for source, target in ((loaded, generator), (loaded_head, head)):
        values = _by_path(source)
        for path, weight in _by_path(target).items():
            if id(weight) not in shared:
                weight.assign(values[path])


def _by_path(model: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns weights by path, without the generator's prefix in training."""
    return {weight.path.removeprefix(f"{GENERATOR}/"): weight for weight in model.weights}
