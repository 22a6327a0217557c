"""Keras' names for classes of this package, which are imported when a saved model needs them.

Keras finds the classes of a ``.keras`` file among registered objects, and imports no other package
than its own. Importing this one must not import Keras, so its classes are registered when Keras is
imported, whichever comes first.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PACKAGE = "bertfam_tf"
# The modules of registered classes; tests/test_keras_objects.py finds those that are missing.
HOME = {
    "Backbone": "models.base",
    "Head": "heads.head",
    "Normal": "layers.initializers",
    "Dense": "layers.fused",
    **dict.fromkeys(("gelu", "gelu_new"), "layers.activations"),
    "MergeRows": "layers.rows",
    "SplitRows": "layers.rows",
    "TokenPooling": "layers.pooling",
    "UnitNormalization": "layers.pooling",
    **dict.fromkeys(("AdamW", "Lamb", "Muon"), "training.optimizers"),
    **dict.fromkeys(
        ("OffsetSchedule", "PiecewiseSchedule", "WarmupLinearDecay"), "training.schedules"
    ),
    **dict.fromkeys(
        "AUC F1 MRR Matthews MicroF1 NDCG Pearson Precision Recall Spearman".split(), "metrics"
    ),
    "TextPreprocessor": "text.preprocessor",
    "Perplexity": "tasks.causal_lm",
    "SpanAccuracy": "tasks.span_targets",
    "WordAccuracy": "tasks.tag_targets",
    **dict.fromkeys(
        """
        CausalLM FewShotClassifier MaskedLM MultiLabelClassifier MultipleChoice Reranker SpanQA
        SparseEmbedder TextClassifier TextEmbedder TextRegressor TokenTagger ZeroShotClassifier
        """.split(),
        "tasks",
    ),
}
_SAVING = "keras.saving"


class Deferred:
    """Stands for a registered class until the class itself is imported and takes its place.

    Args:
        name: the class.
        module: the module that defines it, within the package.
    """

    def __init__(self, name: str, module: str):
        self.name = name
        self.module = module

    def from_config(self, config: dict[str, Any]) -> Any:
        """Imports the class, and returns an instance from the config."""
        return getattr(import_module(f"{PACKAGE}.{self.module}"), self.name).from_config(config)


def register() -> None:
    """Registers the classes with Keras: now if Keras is imported, otherwise when it is."""
    if _SAVING in sys.modules:
        _register(sys.modules[_SAVING])
    elif not any(isinstance(finder, _OnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OnImport())


def _register(saving: ModuleType) -> None:
    known = saving.get_custom_objects()
    for name, module in HOME.items():
        known.setdefault(f"{PACKAGE}>{name}", Deferred(name, module))


class _OnImport(MetaPathFinder):
    """Registers the classes after the import of ``keras.saving``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _SAVING:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        run = loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            _register(module)

        loader.exec_module = run_and_register
        return spec
