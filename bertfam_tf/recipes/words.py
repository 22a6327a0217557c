"""Pretraining of models that read characters and predict words, with a recipe (ELMo)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf.corpora import SentenceWords
from bertfam_tf.corpora.documents import find_files, read_documents
from bertfam_tf.data.inputs import TEXT
from bertfam_tf.files import atomic, write
from bertfam_tf.objectives import BidirectionalTokens, bidirectional_head
from bertfam_tf.recipes import pretrained
from bertfam_tf.recipes.directory import MODEL, RunDirectory, model_source
from bertfam_tf.recipes.objectives import start
from bertfam_tf.recipes.reading import expand, source
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.text import CharacterTokenizer, WordSplitter, load_tokenizer
from bertfam_tf.training import engine
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import DEFAULT_BATCH_SIZE

OBJECTIVE = "bilm"
# The name of the tokenizer that needs no files.
CHARACTERS = "characters"
WORDS = "words.txt"
_UNKNOWN = "<UNK>"
_COUNTED = 10_000


def pretrain_on_words(recipe: PretrainRecipe, directory: RunDirectory) -> dict[str, Any]:
    """Trains a bidirectional language model on single sentences, and writes it.

    It predicts the most frequent words of the training text, which the run directory gets as
    ``words.txt``, with a word in each line.

    Returns:
        The losses and metrics of the held-out text, ``examples``, the number of sentences, and
        ``steps``.

    Raises:
        ValueError: if the recipe or a file is invalid.
    """
    settings, data = recipe.train, recipe.data
    tokenizer = _tokenizer(recipe.model.tokenizer)
    train, dev = (_sentences(recipe, files) for files in (data.train, data.dev))
    words = _vocabulary(recipe, tokenizer)
    pack = SentenceWords(tokenizer, words, data.length)
    keras.utils.set_random_seed(settings.seed)
    fields = {"max_characters": tokenizer.get_config()["max_characters"], **recipe.model.overrides}
    backbone, _ = start(recipe.model, fields)
    head = bidirectional_head(backbone, len(words))
    learner = Learner(
        backbone.input,
        {"hidden_states": backbone.output["hidden_states"]},
        [BidirectionalTokens(head, recipe.objectives[OBJECTIVE])],
    )
    model = pretrained.Pretrained(backbone=backbone, other_heads={OBJECTIVE: head})
    if recipe.model.checkpoint is not None:
        pretrained.fill_rest(model_source(recipe.model.checkpoint), model)

    def encoded(batches: tf.data.Dataset) -> tf.data.Dataset:
        return batches.map(lambda features: pack(features[TEXT]), tf.data.AUTOTUNE).prefetch(2)

    def count_tokens(features: dict[str, tf.Tensor]) -> tf.Tensor:
        lengths = tokenizer.tokenize(features[TEXT]).row_lengths()
        return tf.cast(tf.minimum(lengths + 2, data.length), "int32")

    rows = train.map(lambda features: (features,))
    passes = engine.text_passes(rows, settings, count_tokens)
    held_out = encoded(dev.batch(settings.batch_size or DEFAULT_BATCH_SIZE)).cache()
    phase = passes.phase(learner, settings, held_out)
    engine.compile_model(learner, settings, phase.total)
    directory.begin()
    if directory.writes:
        write(directory.path / WORDS, "".join(f"{word}\n" for word in words))
    # Steps that are done are skipped before their texts are encoded.
    texts = phase.batches
    phase = phase._replace(batches=lambda step: encoded(texts(step)))
    engine.train(phase, directory, settings, tokenizer)
    if not directory.writes:
        return {}
    with atomic(directory.path / MODEL) as target:
        target.mkdir()
        pretrained.write(target, model, tokenizer, length=data.length)
    return {
        **directory.held_out_metrics(),
        "examples": int(rows.cardinality()),
        "steps": directory.steps,
    }


def _tokenizer(name: str) -> CharacterTokenizer:
    tokenizer = CharacterTokenizer() if name == CHARACTERS else load_tokenizer(source(name))
    if not isinstance(tokenizer, CharacterTokenizer):
        raise ValueError(
            f"model.tokenizer must be {CHARACTERS}, or a directory with a CharacterTokenizer, for "
            f"the objective {OBJECTIVE}, got {name!r}, a {type(tokenizer).__name__}."
        )
    return tokenizer


def _sentences(recipe: PretrainRecipe, files: Any) -> tf.data.Dataset:
    """Returns sentences as features, with known cardinality, read from files in each pass."""
    paths = find_files(map(expand, files))

    def lines() -> Iterator[str]:
        for document in read_documents(paths, recipe.data.documents, recipe.data.sentences):
            yield from document

    dataset = tf.data.Dataset.from_generator(
        lines, output_signature=tf.TensorSpec([], tf.string)
    ).map(lambda line: {TEXT: line})
    number = sum(1 for _ in lines())
    if not number:
        raise ValueError(f"There is no text in {', '.join(map(str, paths))}.")
    return dataset.apply(tf.data.experimental.assert_cardinality(number))


def _vocabulary(recipe: PretrainRecipe, tokenizer: CharacterTokenizer) -> list[str]:
    """Returns the predicted words: special ones, and the most frequent ones of the text."""
    split = WordSplitter(tokenizer.get_config()["split"])
    counts: Counter[bytes] = Counter()
    texts = (row[TEXT] for row in _sentences(recipe, recipe.data.train).as_numpy_iterator())
    while batch := list(islice(texts, _COUNTED)):
        counts.update(split(batch).text.values.numpy())
    special = tokenizer.special_tokens
    first = [special.bos_token, special.eos_token, _UNKNOWN]
    # Ties are ordered by word, so that all workers have the same vocabulary.
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[: recipe.data.words]
    words = [word.decode("utf-8", "replace") for word in ordered]
    return list(dict.fromkeys([*first, *(word for word in words if "\n" not in word)]))
