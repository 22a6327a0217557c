"""Pretraining of encoders with a recipe, on sentences of text files or on shards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property, partial
from itertools import product
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import registry
from bertfam_tf.corpora import Corpus, Format, Shards, TranslationPairs
from bertfam_tf.corpora.documents import find_files
from bertfam_tf.corpora.examples import FormedExamples, Spans
from bertfam_tf.corpora.languages import Languages, Translations
from bertfam_tf.files import atomic
from bertfam_tf.metrics import parse
from bertfam_tf.models import Backbone
from bertfam_tf.names import join_names, unknown
from bertfam_tf.recipes import objectives, pretrained
from bertfam_tf.recipes.directory import MODEL, RunDirectory, model_source
from bertfam_tf.recipes.reading import expand, source
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.tasks import TokenTagger, load
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.training import engine
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import Stage
from bertfam_tf.training.stacking import train_in_stages


def pretrain_on_sentences(recipe: PretrainRecipe, directory: RunDirectory) -> dict[str, Any]:
    """Trains a model, and writes a checkpoint with heads and tokenizer; see ``pretrained``.

    Returns:
        The losses and metrics of the held-out text, ``steps``, and ``examples``, the number of
        examples in one pass over the training text, if the recipe has neither ``train.steps`` nor
        stages.

    Raises:
        ValueError: if the recipe or a file is invalid.
    """
    settings = recipe.train
    objectives.check(recipe)
    tokenizer = registry.get(recipe.model.family).padded(
        load_tokenizer(source(recipe.model.tokenizer))
    )
    keras.utils.set_random_seed(settings.seed)
    first = current = objectives.build(recipe, tokenizer)
    data = _Data(recipe, tokenizer, first)
    results: dict[str, Any] = {}
    stages = recipe.stages
    if not stages:
        total = settings.steps
        if total is None:
            text = data.train(recipe.data.length)
            results["examples"] = text.count()
            total = data.steps(text, results["examples"]) * settings.epochs
        stages = [Stage(steps=total, epochs=min(settings.epochs, total))]

    def learner(backbone: Backbone) -> Learner:
        nonlocal current
        if backbone is not first.backbone:
            current = objectives.build(recipe, tokenizer, backbone)
        return current.learner

    data.check(stages)
    directory.begin()
    train_in_stages(
        first.backbone,
        stages,
        learner,
        lambda step: data.batches(stages, step),
        settings=settings,
        directory=directory.backup().directory,
        recipe=recipe.to_yaml(),
        callbacks=lambda stage, step: engine.run_callbacks(
            directory, settings, lambda at: data.texts(stages, at), step, stage
        ),
        validation_data=lambda i: data.held_out(data.length(stages[i])),
    )
    if not directory.writes:
        return {}
    _save(current, tokenizer, recipe, directory)
    return {**results, **directory.held_out_metrics(), "steps": directory.steps}


class _Data:
    """The batches of a recipe's text files."""

    def __init__(
        self, recipe: PretrainRecipe, tokenizer: Tokenizer, pretraining: objectives.Pretraining
    ):
        self.batch_size = recipe.train.batch_size
        self.batch_tokens = recipe.train.batch_tokens
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.pretraining = pretraining
        # Functions of the length of examples.
        data = recipe.data
        self.train = cache(partial(self._examples, data.train, data.train_translations))
        self._dev = partial(self._examples, data.dev, data.dev_translations)
        self.held_out = cache(self._held_out)

    def length(self, stage: Stage) -> int:
        return stage.length or self.recipe.data.length

    def check(self, stages: Sequence[Stage]) -> None:
        """Checks lengths and files before training starts.

        Raises:
            ValueError: if the model or the format does not allow a length, or files are missing.
        """
        most = self.pretraining.backbone.max_length
        for length in sorted({self.length(stage) for stage in stages}):
            if most is not None and length > most:
                raise ValueError(
                    f"data.length and stages[i].length must be at most the {most} positions of the "
                    f"model, got {length}."
                )
            for text in (self.train(length), self._dev(length)):
                if {"nsp", "sop"} & set(self.recipe.objectives):
                    text.check_labels()
        if self.batch_tokens is not None and any(stage.batch_size for stage in stages):
            raise ValueError("Stages must not have a batch_size together with train.batch_tokens.")

    def steps(self, text: FormedExamples | Languages, count: int) -> int:
        """Returns the number of batches of one pass over a text of ``count`` examples."""
        if self.batch_tokens is not None:
            return text.count_batches(self.batch_tokens)
        assert self.batch_size is not None
        return -(-count // self.batch_size)

    def batches(self, stages: Sequence[Stage], step: int) -> tf.data.Dataset:
        """Returns the batches of a step's stage, from this step on.

        A stage starts with the example after the last one of the previous stage. If the length of
        examples changes, it skips as many examples as have about the same number of tokens.
        """
        start, before, length = 0, 0, self.length(stages[0])
        for stage in stages:
            # With batch_tokens, batches are counted: all stages have the same tokens per batch.
            size = stage.batch_size or self.batch_size or 1
            if self.batch_tokens is None:
                start = start * length // self.length(stage)
            length = self.length(stage)
            if step < before + stage.steps:
                break
            start += stage.steps * size
            before += stage.steps
        batches = self.train(length).batches(
            None if self.batch_tokens else size,
            self.pretraining.masking,
            batch_tokens=self.batch_tokens,
            copies=self.recipe.masking.copies,
            passes=None,
            start=start + (step - before) * size,
        )
        return batches.map(self.pretraining.batch)

    def texts(self, stages: Sequence[Stage], step: int) -> list[str]:
        """Returns the masked examples of a step's batch."""
        return engine.batch_texts(self.batches(stages, step), self.tokenizer)

    def _held_out(self, length: int) -> tf.data.Dataset:
        """Returns batches that are the same in each evaluation, cached in memory."""
        batches = self._dev(length).batches(
            self.batch_size, self.pretraining.masking, batch_tokens=self.batch_tokens, copies=1
        )
        batches = batches.map(self.pretraining.batch).cache()
        # Keras warns about a dataset of unknown cardinality.
        number = batches.reduce(np.int64(0), lambda count, *row: count + 1)
        return batches.apply(tf.data.experimental.assert_cardinality(number))

    def _examples(
        self,
        files: list[str] | dict[str, list[str]],
        translations: dict[str, list[str]],
        length: int,
    ) -> FormedExamples | Languages:
        if translations and self.recipe.masking.tagger is not None:
            raise ValueError("masking.unit must not be tagged for translations.")
        if translations and self.batch_tokens is not None:
            raise ValueError("train.batch_tokens must be null for translations: set batch_size.")
        if not isinstance(files, dict):
            return self._texts_or_shards(files, length, self.tokenizer)
        data, seed = self.recipe.data, self.recipe.train.seed
        ids = _languages(self.recipe)
        for name in files:
            if name not in ids:
                raise ValueError(unknown("language of data.train", name, ids))
        tokenizers = {name: self.tokenizer.in_language(name) for name in ids}
        texts = {
            ids[name]: self._texts_or_shards(paths, length, tokenizers[name])
            for name, paths in files.items()
            if paths
        }
        sources = []
        for name, paths in translations.items():
            # Codes such as pt-BR have hyphens too.
            pair = next((pair for pair in product(ids, repeat=2) if "-".join(pair) == name), None)
            if pair is None:
                raise ValueError(
                    "A pair of languages must be two of data.train, such as "
                    f"{'-'.join(list(ids)[:2])}, got {name!r}."
                )
            source = Translations(
                find_files(map(expand, paths)),
                [ids[language] for language in pair],
                TranslationPairs(self.pretraining.backbone, self.tokenizer, length),
                [tokenizers[language] for language in pair],
                shuffle=data.shuffle,
                seed=seed,
            )
            sources.append(source)
        return Languages(texts, sources, data.exponent, seed)

    def _texts_or_shards(
        self, names: list[str], length: int, tokenizer: Tokenizer
    ) -> Corpus | Shards:
        data, seed = self.recipe.data, self.recipe.train.seed
        paths = [expand(name) for name in names]
        folders = [path for path in paths if path.is_dir()]
        if not folders:
            return self._corpus(names, length, tokenizer)
        if len(folders) < len(paths):
            raise ValueError(
                f"data has text files and folders of shards together ({join_names(names)}), "
                "expected one kind."
            )
        if self.recipe.masking.tagger is not None:
            raise ValueError("masking.unit must not be tagged for shards, which have no spans.")
        form = Format(tokenizer, length, data.format, self._task)
        return Shards(folders, form, shuffle=data.shuffle, seed=seed)

    def _corpus(self, files: list[str], length: int, tokenizer: Tokenizer) -> Corpus:
        data = self.recipe.data
        return Corpus(
            find_files(map(expand, files)),
            tokenizer,
            length,
            data.format,
            task=self._task,
            documents=data.documents,
            sentences=data.sentences,
            shuffle=data.shuffle,
            seed=self.recipe.train.seed,
            spans=self._spans,
        )

    @cached_property
    def _spans(self) -> Spans | None:
        """Finds the spans of sentences with the recipe's tagger."""
        masking = self.recipe.masking
        if masking.tagger is None:
            return None
        tagger = load(model_source(masking.tagger))
        if not isinstance(tagger, TokenTagger):
            raise ValueError(
                f"masking.tagger must be a TokenTagger, {masking.tagger} is a "
                f"{type(tagger).__name__}."
            )
        labels = sorted({parse(tag)[1] for tag in tagger.tags} - {""})
        for label in masking.labels or []:
            if label not in labels:
                raise ValueError(unknown("label of masking.labels", label, labels))
        selected = set(labels if masking.labels is None else masking.labels)

        def spans(sentences: list[str]) -> list[list[tuple[int, int]]]:
            # Tokenizers count bytes, taggers characters.
            return [
                [
                    (len(text[: entity["start"]].encode()), len(text[: entity["end"]].encode()))
                    for entity in entities
                    if entity["label"] in selected
                ]
                for text, entities in zip(sentences, tagger.entities(sentences), strict=True)
            ]

        return spans

    @property
    def _task(self) -> str:
        return "sop" if "sop" in self.recipe.objectives else "nsp"


def _languages(recipe: PretrainRecipe) -> dict[str, int]:
    """Returns the ids of the languages of the training text."""
    return {name: number for number, name in enumerate(recipe.data.train)}


def _save(
    pretraining: objectives.Pretraining,
    tokenizer: Tokenizer,
    recipe: PretrainRecipe,
    directory: RunDirectory,
) -> None:
    by_language = "language_ids" in pretraining.backbone.token_inputs
    length = recipe.data.length
    with atomic(directory.path / MODEL) as target:
        target.mkdir()
        pretrained.write(
            target,
            pretraining,
            tokenizer,
            length=max((s.length or length for s in recipe.stages), default=length),
            languages=_languages(recipe) if by_language else None,
        )
