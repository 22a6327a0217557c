"""Pretrains encoders on the sentences of text files with a recipe."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import optimizers
from bertfam_tf.config import PretrainRecipe, expand
from bertfam_tf.data.documents import find_files
from bertfam_tf.files import atomic
from bertfam_tf.learner import Learner
from bertfam_tf.models import Backbone
from bertfam_tf.tasks import publish
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.train import objectives
from bertfam_tf.train.backup import remaining
from bertfam_tf.train.corpus import Corpus
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
    train, dev = (_corpus(recipe, files, tokenizer) for files in (data.train, data.dev))
    batch_size = _batch_size(recipe)
    held_out = _held_out(dev, batch_size, made)
    batches = train.batches(batch_size, made.masking, copies=recipe.masking.copies, passes=None)
    found: dict[str, Any] = {}
    if recipe.stages:
        made = _in_stages(recipe, tokenizer, made, batches, held_out, directory)
        _save(made, tokenizer, recipe, directory)
        steps = sum(stage.steps for stage in recipe.stages)
        return {**_losses(directory), "steps": steps}
    total = settings.steps
    if total is None:
        found["examples"] = _count(train)
        total = -(-found["examples"] // batch_size) * settings.epochs
    steps = max(total // settings.epochs, 1)  # of an epoch, which ends with an evaluation
    made.learner.compile(optimizers.of(settings, steps * settings.epochs))
    directory.begin()
    backup, history = directory.backup(settings.backup_steps), directory.history()
    done = backup.restore(made.learner)
    if done:
        _log.info("Resuming from step %d of %d.", done, steps * settings.epochs)
    if done % steps:
        made.learner.evaluate(held_out.take(1), verbose=0)
    for part in remaining(done, steps, settings.epochs):
        made.learner.fit(
            batches.skip(part.last * steps - (part.last - part.first) * part.steps).map(made.batch),
            initial_epoch=part.first,
            epochs=part.last,
            steps_per_epoch=part.steps,
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


def _held_out(corpus: Corpus, batch_size: int, made: objectives.Pretraining) -> tf.data.Dataset:
    """Batches that are the same in each evaluation, in memory: the text is tokenized once."""
    batches = corpus.batches(batch_size, made.masking, copies=1).map(made.batch).cache()
    # Keras warns of a data set whose length it does not know.
    number = batches.reduce(np.int64(0), lambda count, *_: count + 1)
    return batches.apply(tf.data.experimental.assert_cardinality(number))


def _count(corpus: Corpus) -> int:
    return sum(1 for _ in corpus.examples())


def _corpus(recipe: PretrainRecipe, files: list[str], tokenizer: Tokenizer) -> Corpus:
    data = recipe.data
    return Corpus(
        find_files(map(expand, files)),
        tokenizer,
        data.length,
        data.format,
        task="sop" if "sop" in recipe.objectives else "nsp",
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
    with atomic(directory.path / MODEL) as target:
        target.mkdir()
        publish.write(
            target,
            made.backbone,
            tokenizer,
            list(made.heads.values()),
            inputs=made.backbone.token_inputs,
            max_length=made.backbone.max_length or recipe.data.length,
        )
