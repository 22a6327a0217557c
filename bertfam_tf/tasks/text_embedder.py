"""One vector for each text (Sentence-BERT, arXiv 1908.10084)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import keras
import tensorflow as tf

from bertfam_tf import layers, parsing
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.base import Task
from bertfam_tf.tasks.options import PairOptions, option
from bertfam_tf.tasks.parts import Parts
from bertfam_tf.tasks.preprocessing import Packed
from bertfam_tf.text import Tokenizer


@dataclass(frozen=True, kw_only=True)
class EmbedderOptions(PairOptions):
    """Options of ``TextEmbedder``."""

    pair: bool | None = option("whether an example is two texts.", False, settable=True)
    pooling: Literal["mean", "first"] = option(
        '``"mean"`` of the vectors of all tokens except padding, or ``"first"``, the first one.',
        "mean",
    )
    normalize: bool = option(
        "whether embeddings have length 1, so that a dot product is the cosine.", True
    )

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "first"):
            raise ValueError(f"pooling must be 'mean' or 'first', got {self.pooling!r}.")


class TextEmbedder(Task):
    """Embeddings whose cosine is the similarity of two texts.

    ``predict`` returns them as float32 (texts, hidden). ``from_pretrained``
    reads the pooling, the normalization and the length that a sentence-transformers checkpoint
    stores. The task has no default loss: pass one to ``compile``.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
        {options}

    Raises:
        ValueError: for an unknown ``pooling``; and as ``Task`` raises it.
        CheckpointError: from ``from_pretrained``, for a stored pooling that is not supported.
    """

    options_type = EmbedderOptions
    answer_name = "embedding"

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> Parts:
        inputs = backbone.token_inputs
        reads = "sequence_output" if options.pooling == "mean" else "first_token"
        pooling = layers.MeanPooling(name="pooling", dtype=backbone.dtype_policy)
        normalization = keras.layers.UnitNormalization(dtype="float32", name="normalization")

        def read(found: Any, given: Any) -> Any:
            x = found[reads]
            if options.pooling == "mean":
                x = pooling(x, given["padding_mask"])  # (batch, hidden)
            return normalization(x) if options.normalize else x

        return Parts(
            inputs=inputs,
            outputs=read(backbone(inputs, outputs=reads), inputs),  # (batch, hidden)
            read=read,
            source=reads,
            preprocessor=Packed(backbone, tokenizer, options, self.fields),
            postprocess=lambda outputs, _: {"embedding": tf.cast(outputs, tf.float32)},
            to_python=lambda answers, _: answers["embedding"].numpy(),
        )

    @classmethod
    def stored_options(cls, directory: Path) -> dict[str, Any]:
        """As sentence-transformers stores them; none for other checkpoints."""
        modules = _json(directory / "modules.json")
        if modules is None:
            return {}
        try:
            return _module_options(directory, modules)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{directory / 'modules.json'} is not sentence-transformers' list of modules: "
                f"{error!r}"
            ) from error


_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}


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
                    f"{directory / module['path']} pools by {modes}, expected one of "
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
