"""Packs a recipe's examples as token ids for ``tools.gpu_pretrain.train``; needs TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bertfam_tf.corpora import Corpus
from bertfam_tf.corpora.documents import find_files
from bertfam_tf.corpora.examples import pass_seed
from bertfam_tf.corpora.masking import Masking, word_edges
from bertfam_tf.metrics.minimal_pairs import read_minimal_pairs
from bertfam_tf.recipes.reading import expand, load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.text import Tokenizer, load_tokenizer
from tools.gpu_pretrain import packed

_UNITS = ("piece", "word")
_FORMATS = ("full_sentences", "doc_sentences")
# Passes whose masks differ where ``masking.copies`` is null.
_PASSES = 1000


def pack(recipe: PretrainRecipe, minimal_pairs: Path | None = None) -> tuple[dict, dict]:
    """Returns arrays, and the settings that training also reads."""
    if len(recipe.objectives) != 1 or not {"mlm", "clm"} & set(recipe.objectives):
        raise ValueError(f"objectives must be mlm or clm alone, got {list(recipe.objectives)}.")
    if recipe.masking.unit not in _UNITS:
        raise ValueError(f"masking.unit must be piece or word, got {recipe.masking.unit}.")
    if recipe.data.format not in _FORMATS:
        raise ValueError(f"data.format must be {' or '.join(_FORMATS)}, got {recipe.data.format}.")
    if recipe.stages or recipe.train.accumulation_steps > 1 or recipe.train.batch_size is None:
        raise ValueError(
            "stages must be empty, train.accumulation_steps 1 and train.batch_size a number."
        )
    if recipe.train.layer_decay != 1 or recipe.train.gradient_checkpointing:
        raise ValueError("train.layer_decay must be 1, and train.gradient_checkpointing false.")
    tokenizer = load_tokenizer(expand(recipe.model.tokenizer))
    arrays: dict[str, np.ndarray] = {}
    for split in ("dev", "train"):
        files = getattr(recipe.data, split)
        corpus = Corpus(
            find_files(map(expand, files)),
            tokenizer,
            recipe.data.length,
            recipe.data.format,
            documents=recipe.data.documents,
            sentences=recipe.data.sentences,
            shuffle=1,
        )
        examples = (example.first for example in corpus.examples())
        _add(arrays, split, tqdm(examples, split, unit=" examples"))
    pairs = {} if minimal_pairs is None else read_minimal_pairs(minimal_pairs)
    sentences = [text for rows in pairs.values() for pair in rows for text in pair]
    tokens = tokenizer.tokenize(sentences).to_list() if sentences else []
    _add(arrays, "pairs", tokens)
    numbers = [i for i, rows in enumerate(pairs.values()) for _ in rows]
    arrays["pairs_paradigms"] = np.array(numbers, "uint8")
    arrays |= _vocabulary(tokenizer)
    return arrays, _settings(recipe, tokenizer, list(pairs))


def _add(arrays: dict[str, np.ndarray], name: str, rows: Iterable[Sequence[int]]) -> None:
    parts = [np.asarray(row, "uint16") for row in rows]
    arrays[f"{name}_lengths"] = np.array([len(part) for part in parts], "uint16")
    arrays[f"{name}_ids"] = np.concatenate([np.zeros(0, "uint16"), *parts])


def _vocabulary(tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    if tokenizer.vocab_size > 2**16:
        raise ValueError(
            f"The vocabulary must have at most 65,536 entries, got {tokenizer.vocab_size:,}."
        )
    starts, ends = word_edges(tokenizer)
    special = Masking(tokenizer).is_special(np.arange(tokenizer.vocab_size)).numpy()
    return {"special": special, "starts": starts, "ends": ends}


def _settings(recipe: PretrainRecipe, tokenizer: Tokenizer, paradigms: list[str]) -> dict[str, Any]:
    most = recipe.masking.max_predictions
    # Compiled shapes need a number of predictions, which few examples exceed.
    most = most or round(recipe.masking.rate * recipe.data.length) + 4
    return {
        "model": {
            "family": recipe.model.family,
            "size": recipe.model.size,
            "overrides": {"vocab_size": tokenizer.vocab_size, **recipe.model.overrides},
        },
        "data": {"length": recipe.data.length},
        "objectives": list(recipe.objectives),
        "masking": {**dataclasses.asdict(recipe.masking), "max_predictions": most},
        "train": dataclasses.asdict(recipe.train),
        "train_precision": "mixed_bfloat16",
        "pass_seeds": [
            pass_seed(recipe.train.seed, n) for n in range(recipe.masking.copies or _PASSES)
        ],
        "special_ids": tokenizer.special_ids,
        "paradigms": paradigms,
    }


def main(recipe: str, output: Path, minimal_pairs: Path | None) -> None:
    loaded = load_recipe(recipe, [], PretrainRecipe)
    packed.write(output, *pack(loaded, minimal_pairs))
    print(f"{output}: {output.stat().st_size / 2**20:.1f} MiB")
