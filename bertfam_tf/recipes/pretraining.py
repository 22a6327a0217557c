"""Runs a recipe of pretraining."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bertfam_tf.corpora.documents import find_files
from bertfam_tf.corpora.settings import MaskingConfig
from bertfam_tf.corpora.token_streams import read_lines, segments, token_stream
from bertfam_tf.files import scratch
from bertfam_tf.recipes.directory import MODEL, Flops, RunDirectory, run_once
from bertfam_tf.recipes.objectives import start
from bertfam_tf.recipes.reading import expand, source
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.recipes.sentences import pretrain_on_sentences
from bertfam_tf.recipes.words import OBJECTIVE, pretrain_on_words
from bertfam_tf.tasks import CausalLM
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.training import engine
from bertfam_tf.training.stream_lm import StreamLM

# Keras' warning about a pooler that no objective of the recipe reads.
_UNTRAINED_POOLER = r"Gradients do not exist for variables \[('pooler/[^']*'(, )?)+\]"


def pretrain(recipe: PretrainRecipe, *, flops: Flops | None = None) -> dict[str, Any]:
    """Pretrains a model on text files, from random weights or from a checkpoint.

    The output directory gets the recipe, the trained model, and the losses and metrics of training
    and held-out text in each epoch, as ``history.csv`` and, if matplotlib is installed,
    ``curves.png``. Causal models are trained on a stream of text, and saved as a ``CausalLM``.
    Others are trained on sentences, and saved as a checkpoint with the trained heads and the
    tokenizer, which ``from_pretrained`` of any task reads: in transformers' format, or in this
    package's if that cannot represent the model. An interrupted run resumes after the last training
    checkpoint; a finished run returns its stored metrics.

    Args:
        recipe: the recipe.
        flops: the same as for ``RunDirectory``.

    Returns:
        For a stream, ``perplexity`` of the held-out text, ``tokens``, the size of the training
        text, and ``samples``, a text for each prompt; else the result of
        ``sentences.pretrain_on_sentences`` or ``words.pretrain_on_words``.

    Raises:
        ValueError: if the recipe or a file is invalid, the output directory has the run of another
            recipe, or a training checkpoint is damaged.
        OSError: if writing fails, for example because the disk is full, or another process is
            writing to the directory; the next run resumes.
    """
    return run_once(recipe, _run, flops)


def _run(recipe: PretrainRecipe, directory: RunDirectory) -> dict[str, Any]:
    train, objective = _FORMATS.get(recipe.data.format, (pretrain_on_sentences, None))
    if objective is not None:
        _check_only_objective(recipe, objective)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _UNTRAINED_POOLER)
        metrics = train(recipe, directory)
    directory.finish(metrics)
    return metrics


def _check_only_objective(recipe: PretrainRecipe, objective: str) -> None:
    """Raises ValueError unless a recipe has only this objective, lists of files, and no stages,
    masks or translations."""
    where, data = f"for data.format {recipe.data.format}", recipe.data
    if list(recipe.objectives) != [objective]:
        names = ", ".join(recipe.objectives)
        raise ValueError(f"objectives must be {objective} {where}, got {names}.")
    if recipe.stages:
        raise ValueError(f"stages must be empty {where}.")
    if recipe.masking != MaskingConfig():
        raise ValueError(f"masking must be empty {where}, for which no tokens are masked.")
    if isinstance(data.train, dict) or isinstance(data.dev, dict):
        raise ValueError(f"data.train and data.dev must be lists of files {where}, got a table.")
    if data.train_translations or data.dev_translations:
        raise ValueError(
            f"data.train_translations and data.dev_translations must be empty {where}."
        )


def _pretrain_on_stream(recipe: PretrainRecipe, directory: RunDirectory) -> dict[str, Any]:
    if recipe.train.batch_size is None:
        raise ValueError(
            "train.batch_tokens must be null for pretraining on a stream, whose batches have "
            "train.batch_size segments of data.length tokens."
        )
    tokenizer = load_tokenizer(source(recipe.model.tokenizer))

    def stream(files: Any, file: Path | None = None) -> np.ndarray:
        lines = read_lines(find_files(map(expand, files)))
        return token_stream(lines, tokenizer, recipe.data.end, file)

    # On disk, because the stream may be larger than memory; each worker has its own file.
    with scratch(directory.path / "tokens") as folder:
        train = stream(recipe.data.train, folder / "train")
        dev = stream(recipe.data.dev)
        return _train_on_stream(recipe, directory, tokenizer, train, dev)


def _train_on_stream(
    recipe: PretrainRecipe,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    train: np.ndarray,
    dev: np.ndarray,
) -> dict[str, Any]:
    settings, length = recipe.train, recipe.data.length
    size = settings.batch_size
    assert size is not None
    batches = segments(train, size, length)
    passes = engine.Passes(int(batches.cardinality()), lambda number: batches)
    keras.utils.set_random_seed(settings.seed)
    model = recipe.model
    backbone, fill = start(model, {"vocab_size": tokenizer.vocab_size, **model.overrides})
    most = backbone.max_length
    if most is not None and length > most:
        raise ValueError(
            f"data.length must be at most the {most} positions of the model, got {length}."
        )
    task = CausalLM(backbone, tokenizer)
    fill({"causal_lm": task.head})
    learner = StreamLM(task.backbone, task.head)
    phase = passes.phase(learner, settings, segments(dev, 1, length))
    engine.compile_model(learner, settings, phase.total, jit_compile=False)
    directory.begin()
    engine.train(phase, directory, settings, tokenizer)
    if not directory.writes:
        return {}
    task.save(directory.path / MODEL)
    return {
        "perplexity": directory.held_out_metrics()["perplexity"],
        "tokens": len(train),
        "samples": {
            prompt: task.generate(prompt, max_new_tokens=60, temperature=0.8, top_p=0.9, seed=0)
            for prompt in recipe.prompts
        },
    }


# By ``data.format``: the function that trains, and the only objective that it supports.
_FORMATS = {
    "stream": (_pretrain_on_stream, "clm"),
    "sentences": (pretrain_on_words, OBJECTIVE),
}
