"""From another format's names to Hugging Face's, which are the ones that the cards' tables know.

A format says where each part of an encoder lies (one table per layout), this module says what
Hugging Face calls that part. A family that shares its wiring with a present one joins by a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.checkpoints.tensors import Stored, Tensors
from bertfam_tf.sources import CheckpointError

_BERT = {
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "projection": "embeddings_project",
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "attention": "encoder.layer.{i}.attention.output.dense",
    "attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "intermediate": "encoder.layer.{i}.intermediate.dense",
    "output": "encoder.layer.{i}.output.dense",
    "output_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooler": "pooler.dense",
    "mlm": "cls.predictions",
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "pair": "cls.seq_relationship",
    "classifier": "classifier",
    "span": "qa_outputs",
}
_GROUP = "encoder.albert_layer_groups.{g}.albert_layers.{j}."
_ALBERT = {
    **_BERT,
    "projection": "encoder.embedding_hidden_mapping_in",
    "query": _GROUP + "attention.query",
    "key": _GROUP + "attention.key",
    "value": _GROUP + "attention.value",
    "attention": _GROUP + "attention.dense",
    "attention_norm": _GROUP + "attention.LayerNorm",
    "intermediate": _GROUP + "ffn",
    "output": _GROUP + "ffn_output",
    "output_norm": _GROUP + "full_layer_layer_norm",
    "pooler": "pooler",
    "mlm": "predictions",
    "mlm_dense": "predictions.dense",
    "mlm_norm": "predictions.LayerNorm",
    "pair": "sop_classifier.classifier",
}
_LAYER = "transformer.layer.{i}."
_DISTILBERT = {
    **_BERT,
    "query": _LAYER + "attention.q_lin",
    "key": _LAYER + "attention.k_lin",
    "value": _LAYER + "attention.v_lin",
    "attention": _LAYER + "attention.out_lin",
    "attention_norm": _LAYER + "sa_layer_norm",
    "intermediate": _LAYER + "ffn.lin1",
    "output": _LAYER + "ffn.lin2",
    "output_norm": _LAYER + "output_layer_norm",
}
# Hugging Face's name for each part, by model type.
PARTS: Mapping[str, Mapping[str, str]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "albert": _ALBERT,
    "distilbert": _DISTILBERT,
}

# Parts with a kernel, which Hugging Face stores as (out, in) and the other formats as (in, out),
# where either may be split into heads: in ``attention`` what goes in, elsewhere what comes out.
_KERNELS = set("projection query key value attention intermediate output pooler mlm_dense".split())
_SPLIT_IN = {"attention"}


@dataclass(frozen=True)
class Source:
    """A checkpoint of any format, told as Hugging Face would.

    Attributes:
        values: the ``config.json`` that says what it is.
        tensors: under Hugging Face's names and in its orientation.
        fields: config fields of ours that the format fixes and that config cannot say.
    """

    values: dict[str, Any]
    tensors: Tensors
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Where a format puts the parts of one kind of encoder.

    Attributes:
        parts: part -> its path there, with ``{i}``, ``{g}`` and ``{j}`` for numbers.
        leaves: what may stand behind a path -> what it is: ``weight`` or ``bias``. Kernels are
            taken for (in, out), whatever heads they are split into.
        ignored: regular expressions of names that carry no weight of the encoder.
        first_position: rows of the table of positions that Hugging Face has in front and the
            format leaves out.
    """

    parts: Mapping[str, str]
    leaves: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    first_position: int = 0


def tensors(
    stored: Iterable[tuple[str, Stored]],
    layout: Layout,
    values: dict[str, Any],
    zeros: Mapping[str, tuple[int, ...]] | None = None,
) -> Tensors:
    """A format's tensors under Hugging Face's names.

    Those that the layout does not know keep their names, so that the loader lists them.

    Args:
        stored: what the layout matches -> the tensor.
        layout: of the format.
        values: the config, as Hugging Face has it.
        zeros: part -> the shape of a table that Hugging Face has and the format lacks.

    Raises:
        CheckpointError: for a kernel of another number of heads than the config's, and as
            ``Tensors`` has it.
    """
    theirs = PARTS[values["model_type"]]
    heads = values.get("num_attention_heads", values.get("n_heads"))
    ignored = re.compile("|".join(layout.ignored) or r"(?!)")
    leaves = "|".join(map(re.escape, sorted(layout.leaves, key=len, reverse=True)))
    patterns = [
        (part, re.compile(_pattern(path) + f"(?P<leaf>{leaves})"))
        for part, path in layout.parts.items()
    ]

    def named() -> Iterator[tuple[str, Stored]]:
        for path, tensor in stored:
            if ignored.fullmatch(path):
                continue
            found = _match(path, patterns)
            if found is None:
                yield tensor.name, tensor
                continue
            part, numbers = found
            kind = layout.leaves[numbers.pop("leaf")]
            # A layout that shares all layers has no numbers: they are the first of each.
            name = theirs[part].format(**{"i": 0, "g": 0, "j": 0, **numbers})
            yield f"{name}.{kind}", _oriented(tensor, part, kind, layout, heads)
        for part, shape in (zeros or {}).items():
            made = Stored(Path(), f"zeros for {part}", shape, "F32", _zeros(shape))
            yield f"{theirs[part]}.weight", made

    return Tensors(named())


def _pattern(path: str) -> str:
    return re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(path))


def _match(path: str, patterns: list[tuple[str, re.Pattern]]) -> tuple[str, dict] | None:
    for part, pattern in patterns:
        match = pattern.fullmatch(path)
        if match:
            return part, match.groupdict()
    return None


def _oriented(tensor: Stored, part: str, kind: str, layout: Layout, heads: Any) -> Stored:
    shape = tensor.shape
    kernel = kind == "weight" and part in _KERNELS
    if kernel and len(shape) == 3 and shape[0 if part in _SPLIT_IN else 1] != heads:
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} {shape} is not for {heads} heads, as the config says."
        )
    if kernel and len(shape) > 1:
        axes = len(shape) - 1 if part in _SPLIT_IN else 1
        rows, columns = math.prod(shape[:axes]), math.prod(shape[axes:])
        return tensor.reshaped((columns, rows), lambda a: a.reshape(rows, columns).T)
    if kind == "bias" and len(shape) > 1:
        return tensor.reshaped((math.prod(shape),), lambda a: a.reshape(-1))
    if part == "positions" and layout.first_position and len(shape) == 2:
        front = layout.first_position
        return tensor.reshaped(
            (shape[0] + front, shape[1]), lambda a: np.pad(a, ((front, 0), (0, 0)))
        )
    return tensor


def _zeros(shape: tuple[int, ...]) -> Callable[[], np.ndarray]:
    return lambda: np.zeros(shape, "float32")
