"""Exports of small tasks with perturbed weights, which the fuzzer sends requests to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_ROOT = Path(__file__).resolve().parents[2]

_SHORT = dict(max_length=24)


def _backbone(family: str, tokenizer: Any) -> Any:
    import bertfam_tf as bf
    from bertfam_tf import registry

    sizes = dict(
        vocab_size=tokenizer.vocab_size, hidden_size=16, embedding_size=16, num_heads=2,
        intermediate_size=16, num_layers=1, num_positions=64, max_positions=64, num_languages=2,
    )  # fmt: skip
    known = registry.get(family).config.__dataclass_fields__
    return bf.build(family, "tiny", **{k: v for k, v in sizes.items() if k in known})


def _classifier(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    import bertfam_tf as bf

    labels = ["negative", "neutral", "positive"]
    return bf.TextClassifier(
        _backbone("bert", tokenizer), tokenizer, labels, pair=True, **_SHORT
    ), {}


def _choice(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    import bertfam_tf as bf

    return bf.MultipleChoice(_backbone("bert", tokenizer), tokenizer, 2, pair=False, **_SHORT), {}


def _tagger(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    import bertfam_tf as bf
    from bertfam_tf.export import BatchingOptions

    tags = ["O", "B-PER", "I-PER", "B-LOC"]
    task = bf.TokenTagger(_backbone("roberta", tokenizer), tokenizer, tags, **_SHORT)
    batching = BatchingOptions(64, (1, 4, 16), batch_timeout_micros=1000)
    return task, dict(max_tokens=12, max_entities=6, batching=batching)


def _questions(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    import bertfam_tf as bf

    backbone = _backbone("albert", tokenizer)
    return bf.SpanQA(backbone, tokenizer, n_best=2, max_answer=5, **_SHORT), {}


def _embedder(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    import bertfam_tf as bf

    return bf.TextEmbedder(_backbone("gpt", tokenizer), tokenizer, **_SHORT), {}


def _regressor(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    import bertfam_tf as bf

    task = bf.TextRegressor(_backbone("gpt", tokenizer), tokenizer, pair=False, **_SHORT)
    return task, {}


def _language_model(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    import bertfam_tf as bf

    task = bf.CausalLM(_backbone("xlnet", tokenizer), tokenizer, **_SHORT)
    return task, dict(max_new_tokens=3)


# By name: the kind of tokenizer, and the function that builds the task and its export options.
EXPORTS: dict[str, tuple[str, Callable[[Any], tuple[Any, dict[str, Any]]]]] = {
    "classifier": ("wordpiece", _classifier),
    "choice": ("wordpiece", _choice),
    "tagger": ("byte-bpe", _tagger),
    "embedder": ("bpe", _embedder),
    "regressor": ("bpe", _regressor),
    "questions": ("sentencepiece", _questions),
    "language_model": ("words", _language_model),
}
_SIZES = {"wordpiece": 200, "byte-bpe": 400, "bpe": 200, "sentencepiece": 150, "words": None}


def write(directory: Path, name: str) -> None:
    """Writes the export with this name to `directory/1`."""
    from bertfam_tf.text.training import train_vocabulary

    kind, make = EXPORTS[name]
    corpus = [_ROOT / "README.md", _ROOT / "ARCHITECTURE.md"]
    tokenizer = train_vocabulary(
        kind, corpus, directory.parent / f"{name}.words", size=_SIZES[kind]
    )
    task, options = make(tokenizer)
    for i, variable in enumerate(task.weights):
        if "seed" not in variable.path:
            noise = np.random.default_rng(i).normal(0, 0.5, variable.shape)
            variable.assign_add(noise.astype("float32"))
    task.export(directory, **options)
