"""Pretrains encoders with a recipe, on the sentences of text files or on shards of examples."""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import optimizers
from bertfam_tf.checkpoints import save
from bertfam_tf.config import PretrainRecipe, expand
from bertfam_tf.data.documents import find_files
from bertfam_tf.files import atomic
from bertfam_tf.learner import Learner
from bertfam_tf.models import Backbone
from bertfam_tf.names import join_names
from bertfam_tf.objectives.corpus import Corpus
from bertfam_tf.objectives.examples import Examples, Format
from bertfam_tf.objectives.shards import Shards
from bertfam_tf.tasks.publish import INPUTS
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.text.published import save_published
from bertfam_tf.train import objectives
from bertfam_tf.train.directory import MODEL, RunDirectory
from bertfam_tf.train.stacking import train_in_stages

_log = logging.getLogger(__name__)


def pretrain_on_sentences(recipe: PretrainRecipe, directory: RunDirectory) -> dict[str, Any]:
    """Trains, and writes a checkpoint in transformers' format with its heads and tokenizer.

    Returns:
        The losses of the held-out text, ``examples``, their number in one pass over the training
        text (where the recipe has no ``train.steps``), and ``steps``.

    Raises:
        ValueError: for an invalid recipe or file.
    """
    settings, data = recipe.train, recipe.data
    tokenizer = load_tokenizer(expand(recipe.model.tokenizer))
    keras.utils.set_random_seed(settings.seed)
    made = objectives.build(recipe, tokenizer)
    train, dev = (_examples(recipe, files, tokenizer) for files in (data.train, data.dev))
    batch_size = _batch_size(recipe)
    held_out = dev.batches(batch_size, made.masking, copies=1).map(made.batch)
    # Keras warns of a data set whose length it does not know.
    number = -(-dev.count() // batch_size)
    held_out = held_out.apply(tf.data.experimental.assert_cardinality(number))
    batches = train.batches(batch_size, made.masking, copies=recipe.masking.copies, passes=None)
    found: dict[str, Any] = {}
    if recipe.stages:
        made = _in_stages(recipe, tokenizer, made, batches, held_out, directory)
        _save(made, tokenizer, recipe, directory)
        steps = sum(stage.steps for stage in recipe.stages)
        return {**_losses(directory), "steps": steps}
    total = settings.steps
    if total is None:
        found["examples"] = train.count()
        total = -(-found["examples"] // batch_size) * settings.epochs
    steps = max(total // settings.epochs, 1)  # of an epoch, which ends with an evaluation
    made.learner.compile(optimizers.of(settings, steps * settings.epochs))
    directory.begin()
    backup, history = directory.backup(settings.backup_steps), directory.history()
    done = backup.restore(made.learner)
    if done:
        _log.info("Resuming from step %d of %d.", done, steps * settings.epochs)
    epoch, within = divmod(done, steps)
    if within:
        made.learner.evaluate(held_out.take(1), verbose=0)
    # An epoch that is not complete has fewer steps than the others.
    parts = [(epoch, epoch + 1, steps - within)] if within else []
    parts.append((epoch + len(parts), settings.epochs, steps))
    for first, last, length in parts:
        if first < last:
            made.learner.fit(
                batches.skip(last * steps - (last - first) * length).map(made.batch),
                initial_epoch=first,
                epochs=last,
                steps_per_epoch=length,
                shuffle=False,
                validation_data=held_out,
                callbacks=[history, backup],
            )
    _save(made, tokenizer, recipe, directory)
    return {**found, **_losses(directory), "steps": steps * settings.epochs}


def _in_stages(
    recipe: PretrainRecipe,
    tokenizer: Tokenizer,
    first: objectives.Pretraining,
    batches: tf.data.Dataset,
    held_out: tf.data.Dataset,
    directory: RunDirectory,
) -> objectives.Pretraining:
    """Trains a model that grows; returns that of the last stage."""
    made = first

    def learner(backbone: Backbone) -> Learner:
        nonlocal made
        if backbone is not first.backbone:
            made = objectives.build(recipe, tokenizer, backbone)
        return made.learner

    directory.begin()
    train_in_stages(
        first.backbone,
        recipe.stages,
        learner,
        lambda step: batches.skip(step).map(first.batch),
        settings=recipe.train,
        directory=directory.backup().directory,
        callbacks=[directory.history()],
        validation_data=held_out,
    )
    return made


def _losses(directory: RunDirectory) -> dict[str, float]:
    """Of the held-out text, after the last epoch."""
    last = directory.history().rows[-1]
    return {n.removeprefix("val_"): float(v) for n, v in last.items() if n.startswith("val_")}


def _examples(recipe: PretrainRecipe, names: list[str], tokenizer: Tokenizer) -> Examples:
    data = recipe.data
    task = "sop" if "sop" in recipe.objectives else "nsp"
    paths = [expand(name) for name in names]
    folders = [path for path in paths if path.is_dir()]
    if folders and len(folders) < len(paths):
        raise ValueError(
            f"data has text files and folders of shards together ({join_names(names)}), expected "
            "one kind."
        )
    if folders:
        made = Format(tokenizer, data.length, data.format, task)
        return Shards(folders, made, shuffle=data.shuffle, seed=recipe.train.seed)
    return Corpus(
        find_files(paths),
        tokenizer,
        data.length,
        data.format,
        task=task,
        documents=data.documents,
        sentences=data.sentences,
        shuffle=data.shuffle,
        seed=recipe.train.seed,
    )


def _batch_size(recipe: PretrainRecipe) -> int:
    size = recipe.train.batch_size
    if size is None:
        raise ValueError("train.batch_tokens is for fine-tuning; pretraining needs batch_size.")
    return size


def _save(
    made: objectives.Pretraining,
    tokenizer: Tokenizer,
    recipe: PretrainRecipe,
    directory: RunDirectory,
) -> None:
    names = [INPUTS[name] for name in INPUTS if name in made.backbone.token_inputs]
    pad_id = tokenizer.special_ids.get("pad")
    length = made.backbone.max_length or recipe.data.length
    with atomic(directory.path / MODEL) as target:
        target.mkdir()
        kind = save_published(tokenizer, target, inputs=names, max_length=length, pad_id=pad_id)
        save.write(made.backbone, target, heads=made.heads, values={"tokenizer_class": kind})
