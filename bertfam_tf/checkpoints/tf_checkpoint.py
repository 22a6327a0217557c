"""TensorFlow checkpoints with a config beside them: Google's TF1 releases, and TF Model Garden's.

``bert_config.json`` (or ``albert_config.json``, or Model Garden's ``params.yaml``) and
``bert_model.ckpt.index`` with its ``.data-*`` files.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertfam_tf import parsing
from bertfam_tf.checkpoints import bundle_index
from bertfam_tf.checkpoints.foreign import Layout, Source, tensors
from bertfam_tf.checkpoints.tensors import Stored, type_name
from bertfam_tf.names import listed, shown
from bertfam_tf.sources import CheckpointError

CONFIGS = ("bert_config.json", "albert_config.json", "params.yaml")
# Where there are several, these are what the published archives call the trained weights.
_PREFERRED = ("bert_model.ckpt", "model.ckpt-best")

# TF1 ------------------------------------------------------------------------------------------

_TF1_LEAVES = {
    "/kernel": "weight",
    "/bias": "bias",
    "/gamma": "weight",
    "/beta": "bias",
    "/output_weights": "weight",
    "/output_bias": "bias",
    "": "weight",
}
_TF1_LAYER = "bert/encoder/layer_{i}/"
_TF1_BERT = {
    "tokens": "bert/embeddings/word_embeddings",
    "positions": "bert/embeddings/position_embeddings",
    "segments": "bert/embeddings/token_type_embeddings",
    "embedding_norm": "bert/embeddings/LayerNorm",
    "query": _TF1_LAYER + "attention/self/query",
    "key": _TF1_LAYER + "attention/self/key",
    "value": _TF1_LAYER + "attention/self/value",
    "attention": _TF1_LAYER + "attention/output/dense",
    "attention_norm": _TF1_LAYER + "attention/output/LayerNorm",
    "intermediate": _TF1_LAYER + "intermediate/dense",
    "output": _TF1_LAYER + "output/dense",
    "output_norm": _TF1_LAYER + "output/LayerNorm",
    "pooler": "bert/pooler/dense",
    "mlm": "cls/predictions",
    "mlm_dense": "cls/predictions/transform/dense",
    "mlm_norm": "cls/predictions/transform/LayerNorm",
    "pair": "cls/seq_relationship",
    "span": "cls/squad",
    "classifier": "",
}
_TF1_GROUP = "bert/encoder/transformer/group_{g}/inner_group_{j}/"
_TF1_ALBERT = {
    **_TF1_BERT,
    "projection": "bert/encoder/embedding_hidden_mapping_in",
    "query": _TF1_GROUP + "attention_1/self/query",
    "key": _TF1_GROUP + "attention_1/self/key",
    "value": _TF1_GROUP + "attention_1/self/value",
    "attention": _TF1_GROUP + "attention_1/output/dense",
    "attention_norm": _TF1_GROUP + "LayerNorm",
    "intermediate": _TF1_GROUP + "ffn_1/intermediate/dense",
    "output": _TF1_GROUP + "ffn_1/intermediate/output/dense",
    "output_norm": _TF1_GROUP + "LayerNorm_1",
}
# What optimizers keep beside the weights.
_TF1_IGNORED = (r"(.*/)?(global_step|beta[12]_power|adam_[mv]|Adam(_1)?|LAMB(_1)?)",)

# Model Garden ---------------------------------------------------------------------------------

_GARDEN_LEAVES = {
    "/kernel": "weight",
    "/bias": "bias",
    "/gamma": "weight",
    "/beta": "bias",
    "/embeddings": "weight",
}
_GARDEN_LAYER = "_transformer_layers/{i}/"
_GARDEN_BERT = {
    "tokens": "_embedding_layer",
    "positions": "_position_embedding_layer",
    "segments": "_type_embedding_layer",
    "embedding_norm": "_embedding_norm_layer",
    "projection": "_embedding_projection",
    "query": _GARDEN_LAYER + "_attention_layer/_query_dense",
    "key": _GARDEN_LAYER + "_attention_layer/_key_dense",
    "value": _GARDEN_LAYER + "_attention_layer/_value_dense",
    "attention": _GARDEN_LAYER + "_attention_layer/_output_dense",
    "attention_norm": _GARDEN_LAYER + "_attention_layer_norm",
    "intermediate": _GARDEN_LAYER + "_intermediate_dense",
    "output": _GARDEN_LAYER + "_output_dense",
    "output_norm": _GARDEN_LAYER + "_output_layer_norm",
    "pooler": "_pooler_layer",
}
# What lies outside the encoder: counters, optimizers, and Model Garden's heads.
_GARDEN_IGNORED = (
    r"\.\./(save_counter|global_step|_CHECKPOINTABLE_OBJECT_GRAPH|optimizer/.*)",
    r"\.\./.*/(masked_lm|classification_heads|span_labeling|dense|out_proj)/.*",
    r".*/\.OPTIMIZER_SLOT/.*",
)
# Where its pretraining models have the table of tokens, which their two parts share.
_SHARED_TABLE = "masked_lm/embedding_table"
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_TF1 = {"bert": _TF1_BERT, "albert": _TF1_ALBERT}
# Layers that are shared are stored as the first.
_GARDEN_ALBERT = {part: path.replace("/{i}/", "/0/") for part, path in _GARDEN_BERT.items()}
_GARDEN = {"bert": _GARDEN_BERT, "albert": _GARDEN_ALBERT}
# By format and model type, what the activation that a config calls "gelu" is. Model Garden and
# ALBERT's code compute the tanh approximation. BERT's code did from 2019 on; its published weights
# were trained with the exact one of the first release, which every later library took over.
_GELU = {
    ("tf1", "bert"): "gelu",
    ("tf1", "albert"): "gelu_new",
    ("garden", "bert"): "gelu_new",
    ("garden", "albert"): "gelu_new",
}

# Keys of params.yaml -> Hugging Face's.
_PARAMS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "hidden_activation": "hidden_act",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "initializer_range": "initializer_range",
    "embedding_width": "embedding_size",
    "embedding_size": "embedding_size",
}
# Its keys that change the computation, and the only value that is supported.
_PARAMS_REQUIRED = {"norm_first": False, "output_range": None}


def is_in(directory: Path) -> bool:
    """Whether the directory has a config of this kind."""
    return any((directory / name).is_file() for name in CONFIGS)


def has_weights(directory: Path) -> bool:
    """Whether the directory has an index of such a checkpoint."""
    return any(_indices(directory))


def read(directory: Path) -> Source:
    """What the directory holds, told as Hugging Face would.

    Raises:
        CheckpointError: for a config that is damaged or not supported, weights that are missing,
            cut off or damaged, or several checkpoints of which none has a known name.
    """
    config = next(directory / name for name in CONFIGS if (directory / name).is_file())
    values = _params(config) if config.suffix == ".yaml" else _json(config)
    kind = values["model_type"]
    prefix = _prefix(directory)
    reader, names = _open(prefix)
    garden = _OBJECTS in names
    values.setdefault("layer_norm_eps", 1e-12)
    if values.get("hidden_act") == "gelu":
        values["hidden_act"] = _GELU["garden" if garden else "tf1", kind]
    stored = _stored(prefix, reader, names)
    if not garden:
        layout = Layout(_TF1[kind], _TF1_LEAVES, _TF1_IGNORED)
        # A head's names at the root have no path before them.
        return Source(values, tensors(_rooted(stored), layout, values))
    layout = Layout(_GARDEN[kind], _GARDEN_LEAVES, _GARDEN_IGNORED)
    return Source(values, tensors(_garden_paths(prefix, stored), layout, values))


def _json(file: Path) -> dict[str, Any]:
    values = parsing.read_json(file, CheckpointError)
    if not isinstance(values, dict) or "hidden_size" not in values:
        raise CheckpointError(f"{file} has no 'hidden_size'; expected the config of an encoder.")
    shared = file.name.startswith("albert") or "num_hidden_groups" in values
    # Model Garden writes options of its own, and null for those that are not used.
    values = {k: v for k, v in values.items() if k != "backward_compatible" and v is not None}
    return {**values, "model_type": "albert" if shared else "bert"}


def _params(file: Path) -> dict[str, Any]:
    content = parsing.read_yaml(file, CheckpointError)
    try:
        encoder = content["task"]["model"]["encoder"]
        kind = encoder["type"]
        given = dict(encoder[kind])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} does not say task.model.encoder, as Model Garden writes it: {error!r}"
        ) from error
    kind = {"bert_v2": "bert"}.get(kind, kind)
    if kind not in _TF1:
        raise CheckpointError(f"{file} is for a {shown(kind)} encoder. Known: {', '.join(_TF1)}.")
    for key, supported in _PARAMS_REQUIRED.items():
        if given.get(key, supported) != supported:
            raise CheckpointError(
                f"{file} has {key} = {shown(given[key])}, which is not supported; "
                f"supported: {supported!r}."
            )
    values = {_PARAMS[key]: value for key, value in given.items() if key in _PARAMS}
    if values.get("embedding_size") is None:
        values.pop("embedding_size", None)
    return {**values, "model_type": kind}


def _indices(directory: Path) -> list[Path]:
    return [file for file in directory.glob("*.index") if file.is_file()]


def _prefix(directory: Path) -> Path:
    found = sorted(file.name.removesuffix(".index") for file in _indices(directory))
    if not found:
        raise CheckpointError(
            f"No weights in {directory}: expected bert_model.ckpt.index, or another *.index."
        )
    chosen = [name for name in _PREFERRED if name in found] or found
    if len(found) > 1 and chosen is found:
        latest = tf.train.latest_checkpoint(str(directory))
        if latest is None or Path(latest).name not in found:
            raise CheckpointError(
                f"{directory} has several checkpoints and does not say which: {listed(found)}."
            )
        chosen = [Path(latest).name]
    return directory / chosen[0]


def _open(prefix: Path) -> tuple[Any, dict[str, tuple[tuple[int, ...], str]]]:
    parts = sorted(prefix.parent.glob(f"{prefix.name}.data-*-of-*"))
    count = int(parts[0].name.rpartition("-")[2]) if parts else 1
    for i in range(count):
        file = prefix.with_name(f"{prefix.name}.data-{i:05}-of-{count:05}")
        if not file.is_file():
            raise CheckpointError(f"{prefix}.index is there, but {file.name} is missing.")
    bundle_index.check(prefix.with_name(f"{prefix.name}.index"))
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        types = reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"{prefix}.index cannot be read as a TensorFlow checkpoint; it may be cut off or "
            f"damaged: {error}"
        ) from error
    sizes = {name: math.prod(shapes[name]) * types[name].size for name in shapes}
    held = sum(file.stat().st_size for file in parts)
    if sum(sizes.values()) > held:
        raise CheckpointError(
            f"{prefix}.index declares tensors of {sum(sizes.values()):,} bytes, and its data files "
            f"hold {held:,}; they may be cut off or of another checkpoint."
        )
    names = {name: (tuple(shapes[name]), type_name(types[name])) for name in sorted(shapes)}
    return reader, names


def _stored(prefix: Path, reader: Any, names: dict) -> Iterator[tuple[str, Stored]]:
    def read(name: str) -> Callable[[], Any]:
        return lambda: reader.get_tensor(name)

    for name, (shape, dtype) in names.items():
        yield name, Stored(prefix, name, shape, dtype, read(name))


def _rooted(stored: Iterator[tuple[str, Stored]]) -> Iterator[tuple[str, Stored]]:
    return ((path if "/" in path else f"/{path}", tensor) for path, tensor in stored)


def _garden_paths(
    prefix: Path, stored: Iterator[tuple[str, Stored]]
) -> Iterator[tuple[str, Stored]]:
    """Paths below the encoder; numbered ones of a functional encoder get its parts' names."""
    table = {path.removesuffix(_VALUE): tensor for path, tensor in stored}
    positions = re.compile(r"(.*?)(_position_embedding_layer|layer_with_weights-1)/embeddings")
    roots = sorted({match[1] for path in table if (match := positions.fullmatch(path))}, key=len)
    if not roots:
        raise CheckpointError(f"{prefix} holds no encoder; it has {listed(sorted(table))}.")
    root = roots[0]
    inside = {path.removeprefix(root): path for path in table if path.startswith(root)}
    places = _places(inside)
    for path, full in inside.items():
        head, _, rest = path.partition("/")
        yield (f"{places[head]}/{rest}" if head in places else path), table[full]
    for path, tensor in table.items():
        if path.endswith(_SHARED_TABLE):
            yield f"{_GARDEN_BERT['tokens']}/embeddings", tensor
        elif not path.startswith(root):
            yield f"../{path}", tensor


def _places(paths: dict[str, str]) -> dict[str, str]:
    """``layer_with_weights-N`` -> the part that it is, by their fixed order."""
    count = len({path.partition("/")[0] for path in paths if path.startswith("layer_with_weights")})
    if not count:
        return {}
    count += "layer_with_weights-0/embeddings" not in paths  # it lies in the head then
    parts = ["tokens", "positions", "segments", "embedding_norm"]
    if "layer_with_weights-4/kernel" in paths:
        parts.append("projection")
    places = [_GARDEN_BERT[part] for part in parts]
    layers = count - len(places) - 1
    places += [f"_transformer_layers/{i}" for i in range(layers)] + [_GARDEN_BERT["pooler"]]
    return {f"layer_with_weights-{n}": place for n, place in enumerate(places)}
