"""One vector for each text (Sentence-BERT, arXiv 1908.10084)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import layers, parsing
from bertfam_tf.checkpoints import Checkpoint, CheckpointError
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.base import Task, tokenizer_and_language
from bertfam_tf.text import Tokenizer


class TextEmbedder(Task):
    """Embeddings whose cosine says how alike two texts are.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
        pooling: ``"mean"`` over the real tokens, or ``"first"``, the first token.
        normalize: whether embeddings have length 1, so that a dot product is the cosine.
        max_length: most tokens of an input; longer ones are cut. None for all positions.
        language_id: the language of the texts, where the backbone has embeddings of languages.
    """

    answer_name = "embedding"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        pooling: Literal["mean", "first"] = "mean",
        normalize: bool = True,
        max_length: int | None = None,
        language_id: int | None = None,
        pair: bool | None = False,
        **kwargs: Any,
    ):
        if pooling not in ("mean", "first"):
            raise ValueError(f"pooling is 'mean' or 'first', not {pooling!r}.")
        inputs = backbone.row_inputs
        x = backbone(inputs)["sequence_output"]
        if pooling == "mean":
            pooling_layer = layers.MeanPooling(name="pooling", dtype=backbone.dtype_policy)
            x = pooling_layer(x, inputs["padding_mask"])
        else:
            x = x[:, 0, :]
        if normalize:
            x = keras.layers.UnitNormalization(dtype="float32", name="normalization")(x)
        super().__init__(
            inputs,
            x,
            backbone=backbone,
            reads="sequence_output",
            tokenizer=tokenizer,
            pair=pair,
            max_length=max_length,
            language_id=language_id,
            **kwargs,
        )
        self.pooling = pooling
        self.normalize = normalize

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        max_length: int | None = None,
        language: str | int | None = None,
        **overrides: Any,
    ) -> TextEmbedder:
        """An embedder on a published checkpoint.

        Pooling, normalisation and length are the ones that a sentence-transformers checkpoint
        stores; a plain one gets mean pooling and normalised vectors.

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            max_length: most tokens of an input; None takes the checkpoint's.
            language: code of the texts' language, such as ``"de"``, for checkpoints of XLM, or its
                number where they name none; None for their tokenizer's.
            **overrides: config fields of the backbone.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it, and for a pooling that is
                not supported.
        """
        checkpoint = Checkpoint(path, **overrides)
        options = _stored_options(checkpoint.directory)
        if max_length is not None:
            options["max_length"] = max_length
        backbone = checkpoint.backbone()
        tokenizer, language_id = tokenizer_and_language(checkpoint, backbone, language)
        return cls(backbone, tokenizer, language_id=language_id, **options)

    def postprocess(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Embeddings (batch, hidden), float32."""
        return {"embedding": tf.cast(outputs, tf.float32)}

    def predict(self, x: Any, **kwargs: Any) -> np.ndarray:
        """Embeddings (texts, hidden), float32. Arguments and errors as for ``Task.predict``."""
        return super().predict(x, **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> np.ndarray:
        return outputs["embedding"].numpy()

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "pooling": self.pooling, "normalize": self.normalize}


_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}


def _stored_options(directory: Path) -> dict[str, Any]:
    modules = _json(directory / "modules.json")
    if modules is None:
        return {}
    try:
        return _module_options(directory, modules)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory / 'modules.json'} is not sentence-transformers' list of modules: {error!r}"
        ) from error


def _module_options(directory: Path, modules: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"normalize": False}
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind == "Normalize":
            options["normalize"] = True
        elif kind == "Pooling":
            stored = _json(directory / module["path"] / "config.json") or {}
            modes = [key for key, on in stored.items() if key.startswith("pooling_mode_") and on]
            if len(modes) != 1 or modes[0] not in _POOLING:
                raise CheckpointError(
                    f"{directory / module['path']} pools by {modes}; supported is one of "
                    f"{', '.join(_POOLING)}."
                )
            options["pooling"] = _POOLING[modes[0]]
        elif kind != "Transformer":
            raise CheckpointError(f"{directory / 'modules.json'} has a module {kind!r}.")
    length = (_json(directory / "sentence_bert_config.json") or {}).get("max_seq_length")
    if length:
        options["max_length"] = length
    return options


def _json(file: Path) -> Any:
    if not file.is_file():
        return None
    return parsing.read_json(file, CheckpointError)
