"""bertfam_tf: the BERT family in TensorFlow, from raw text to a served answer.

Names are imported when first used, so ``import bertfam_tf`` alone costs milliseconds and a
program that only serves a SavedModel never loads Keras.
"""

import os
import sys
from typing import TYPE_CHECKING

from bertfam_tf import keras_objects
from bertfam_tf.lazy import lazy

if TYPE_CHECKING:
    # Type checkers and editors do not see lazy imports.
    # isort: off
    from bertfam_tf import (
        analysis as analysis,
        checkpoints as checkpoints,
        corpora as corpora,
        data as data,
        distill as distill,
        generation as generation,
        heads as heads,
        layers as layers,
        metrics as metrics,
        models as models,
        objectives as objectives,
        plan as plan,
        recipes as recipes,
        search as search,
        tasks as tasks,
        text as text,
        training as training,
    )
    from bertfam_tf.checkpoints import load_backbone as load_backbone
    from bertfam_tf.distill import Distiller as Distiller
    from bertfam_tf.export import (
        export_onnx as export_onnx,
        export_saved_model as export_saved_model,
        export_tflite as export_tflite,
    )
    from bertfam_tf.models import (
        build as build,
        count_parameters as count_parameters,
        families as families,
    )
    from bertfam_tf.tasks import (
        CausalLM as CausalLM,
        EmbedderTrainer as EmbedderTrainer,
        FewShotClassifier as FewShotClassifier,
        MaskedLM as MaskedLM,
        MultiLabelClassifier as MultiLabelClassifier,
        MultipleChoice as MultipleChoice,
        MultiTask as MultiTask,
        Reranker as Reranker,
        SpanQA as SpanQA,
        SparseEmbedder as SparseEmbedder,
        TextClassifier as TextClassifier,
        TextEmbedder as TextEmbedder,
        TextRegressor as TextRegressor,
        TokenTagger as TokenTagger,
        ZeroShotClassifier as ZeroShotClassifier,
        load as load,
        quantize_embeddings as quantize_embeddings,
        save_pretrained as save_pretrained,
        to_keras_hub as to_keras_hub,
        to_model_garden as to_model_garden,
    )
    from bertfam_tf.text import (
        TextPreprocessor as TextPreprocessor,
        load_tokenizer as load_tokenizer,
    )
    from bertfam_tf.training import (
        layouts as layouts,
        optimizers as optimizers,
        tuning as tuning,
    )
    from bertfam_tf.training.replicas import strategy as strategy
    # isort: on

__version__ = "0.1.0"

_HOME = {
    "families": "models",
    "build": "models",
    "count_parameters": "models",
    "load_backbone": "checkpoints",
    "load_tokenizer": "text",
    "load": "tasks",
    "save_pretrained": "tasks",
    "quantize_embeddings": "tasks",
    "to_keras_hub": "tasks",
    "to_model_garden": "tasks",
    "export_onnx": "export",
    "export_saved_model": "export",
    "export_tflite": "export",
    "strategy": "training.replicas",
    "Distiller": "distill",
    "EmbedderTrainer": "tasks",
    "CausalLM": "tasks",
    "FewShotClassifier": "tasks",
    "MaskedLM": "tasks",
    "MultiLabelClassifier": "tasks",
    "MultiTask": "tasks",
    "MultipleChoice": "tasks",
    "Reranker": "tasks",
    "SpanQA": "tasks",
    "SparseEmbedder": "tasks",
    "TextClassifier": "tasks",
    "TextEmbedder": "tasks",
    "TextRegressor": "tasks",
    "TextPreprocessor": "text",
    "TokenTagger": "tasks",
    "ZeroShotClassifier": "tasks",
}

_MODULES = {name: f"training.{name}" for name in ("layouts", "optimizers", "tuning")}
# ``export`` can also be called: ``bertfam_tf.export(model, directory)``.
_PACKAGES = (
    "analysis checkpoints corpora data distill export generation heads layers metrics models "
    "objectives plan recipes search tasks text training"
)
_MODULES |= {name: name for name in _PACKAGES.split()}

__all__ = ["__version__", *_HOME]


def _quiet() -> None:
    """Sets the log level of TensorFlow's C++ code, unless the user has set it.

    By default TensorFlow logs messages about CUDA and oneDNN in every process; it reads the level
    when it is imported. Without an NVIDIA driver, all of these messages, including errors, only
    report that there is none, so the level is 3 (fatal). With a driver, warnings are logged, for
    example about a missing CUDA library.
    """
    if "tensorflow" not in sys.modules:
        driver = os.path.exists("/proc/driver/nvidia/version")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if driver else "3")


_quiet()
keras_objects.register()

__getattr__, __dir__ = lazy(__name__, _HOME | _MODULES, __all__)
