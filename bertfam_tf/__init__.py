"""bertfam_tf: the BERT family in TensorFlow, from raw text to a served answer.

Names are imported when first used, so ``import bertfam_tf`` alone costs milliseconds and a
program that only serves a SavedModel never loads Keras.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "families": "models",
    "build": "models",
    "count_parameters": "models",
    "load_backbone": "checkpoints",
    "load_tokenizer": "text",
    "load": "tasks",
    "CausalLM": "tasks",
    "MaskedLM": "tasks",
    "MultiLabelClassifier": "tasks",
    "MultipleChoice": "tasks",
    "SpanQA": "tasks",
    "TextClassifier": "tasks",
    "TextEmbedder": "tasks",
    "TextRegressor": "tasks",
    "TokenTagger": "tasks",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
