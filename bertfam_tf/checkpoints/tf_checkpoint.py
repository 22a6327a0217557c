"""TensorFlow checkpoints with a config: Google's TF1 releases and TF Model Garden.

They consist of a JSON config under a name that a family defines, or Model Garden's ``params.yaml``,
and ``bert_model.ckpt.index`` with its ``.data-*`` files.
"""

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.training import checkpoint_state_pb2

from bertfam_tf import model_garden, parsing, registry
from bertfam_tf.checkpoints import bundle_index, huggingface
from bertfam_tf.checkpoints.source import Format, Source, requested_family
from bertfam_tf.checkpoints.tensors import Stored, Tensors, type_name
from bertfam_tf.models.base import Config
from bertfam_tf.names import join_names, truncated, truncated_repr
from bertfam_tf.registry import Family
from bertfam_tf.sources import CheckpointError

# The names of trained weights in published archives, which may contain several checkpoints.
_PREFERRED = ("bert_model.ckpt", "model.ckpt-best")

_TF1, _GARDEN = "tf1", model_garden.FORMAT
# Optimizer state.
_TF1_IGNORED: tuple[str, ...] = (
    r"(.*/)?(global_step|beta[12]_power|adam_[mv]|Adam(_1)?|LAMB(_1)?)",
)
# Counters and optimizer state; heads for pairs of sentences, of pretraining; a pooler that a
# classifier with one of its own does not use.
_REPLACED = "replaced/"
_GARDEN_IGNORED = (
    r"\.\./(save_counter|global_step|_CHECKPOINTABLE_OBJECT_GRAPH|optimizer/.*)",
    r"\.\./(.*/)?classification_heads/.*",
    r".*/\.OPTIMIZER_SLOT/.*",
    f"{_REPLACED}.*",
)
# The layers of heads: the end of a path -> the layer's name in the table. Functional models name
# some by number, after the encoder, which is 0.
_HEADS = {
    r"(?:layer_with_weights-1|classifier|sentence_prediction)/out_proj": "sequence",
    r"layer_with_weights-1/layer_with_weights-0|span_labeling/(?:dense|layer_with_weights-0)": (
        "span"
    ),
    r"layer_with_weights-1|classifier": "tokens",
    r"masked_lm/dense": "masked_lm/dense",
    r"masked_lm/layer_norm": "masked_lm/layer_norm",
}
_HEAD = re.compile(
    "(?:.*/)?(?:" + "|".join(f"({path})" for path in _HEADS) + ")/(kernel|bias|gamma|beta)"
)
_LM_BIAS = "masked_lm/output_bias.Sbias"
# A classifier's own pooler. Keras doubles dots in names.
_OWN_POOLER = re.compile(
    r"(?:.*/)?(?:[\w-]+\.\.pooler_dense|(?:layer_with_weights-1|classifier)/dense)/(kernel|bias)"
)
_PARAMS = model_garden.PARAMS
# Keys of params.yaml that change the computation -> the only value that is supported.
_PARAMS_REQUIRED = {"norm_first": False, "output_range": None}
# Model Garden's pretraining models share the token embedding under this name.
_SHARED_TABLE = "masked_lm/embedding_table"
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# The order of the layers of its functional encoders, which have numbers instead of names.
_EMBEDDINGS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)
_PROJECTION, _BLOCK, _POOLER = "_embedding_projection", "_transformer_layers/{i}", "_pooler_layer"


def _configs() -> list[str]:
    return [*registry.of_format(_TF1), _PARAMS]


def matches(directory: Path) -> bool:
    """Returns whether the directory has a config of this format, and no Hugging Face weights."""
    if not any((directory / name).is_file() for name in _configs()):
        return False
    if not huggingface.matches(directory):
        return True
    # Some archives contain both configs: the weights decide.
    return has_weights(directory) and not huggingface.has_weights(directory)


def has_weights(directory: Path) -> bool:
    """Returns whether the directory has the index of a TensorFlow checkpoint."""
    return any(_indices(directory))


def read(directory: Path, family: str | None = None) -> Source:
    """Opens a checkpoint; arguments and errors as for ``Format.read``."""
    file = next(directory / name for name in _configs() if (directory / name).is_file())
    prefix = _prefix(directory)
    reader, names = _open(prefix)
    tensors = _stored(prefix, reader, names)
    format, ignored = _TF1, _TF1_IGNORED
    if _OBJECTS in names:
        format, ignored = _GARDEN, _GARDEN_IGNORED
        tensors = _garden_paths(prefix, tensors)
    if file.name != _PARAMS:
        record, config = _read_json(file, family, format)
        return Source(record, config, Tensors(tensors), record.formats[format].weights, ignored)
    content = parsing.read_yaml(file, CheckpointError)
    record, config = _read_params(file, content, family, format)
    table = Tensors(tensors)
    values = _read_task(file, content, table)
    return Source(record, config, table, record.formats[format].weights, ignored, values=values)


def _read_json(file: Path, family: str | None, format: str) -> tuple[Family, Config]:
    """Returns the family and config of a JSON file with the keys of Hugging Face's configs."""
    values = parsing.read_object(file, CheckpointError)
    if "hidden_size" not in values:
        raise CheckpointError(f"{file} has no 'hidden_size'; expected the config of an encoder.")
    stated = {key for key, value in values.items() if value is not None}
    known = registry.of_format(_TF1)
    marked = [record for record in known.values() if record.formats[_TF1].marker in stated]
    record = requested_family(family, (*marked, known[file.name])[0], format, file)
    names = huggingface.names_of(record)
    # Model Garden writes additional options, and null for those that are not used. Null for one of
    # the family is an error: the published code takes no activation and no dropout for it.
    values = {
        key: value
        for key, value in values.items()
        if key != "backward_compatible" and (key in stated or key in names.config)
    }
    values["model_type"] = names.model_type
    values.setdefault("layer_norm_eps", 1e-12)
    if values.get("hidden_act") == "gelu":
        values["hidden_act"] = record.formats[format].gelu
    return huggingface.translate(values, record.name, file)


def _read_params(
    file: Path, content: Any, family: str | None, format: str
) -> tuple[Family, Config]:
    """Returns the family and config of Model Garden's ``params.yaml``."""
    try:
        model = content["task"]["model"]
        encoder = model["encoder"]
        kind = encoder["type"]
        values = dict(encoder[kind])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} has no task.model.encoder, as Model Garden writes it: {error!r}"
        ) from error
    known = registry.of_format(_GARDEN)
    if kind not in known:
        raise CheckpointError(
            f"{file} is for a {truncated_repr(kind)} encoder. Known: {', '.join(known)}."
        )
    for key, supported in _PARAMS_REQUIRED.items():
        if values.get(key, supported) != supported:
            raise CheckpointError(
                f"{file} has {key} = {truncated_repr(values[key])}, which is not supported; "
                f"supported: {supported!r}."
            )
    record = requested_family(family, known[kind], format, file)
    fields: dict[str, Any] = {}
    for key, ours in record.formats[_GARDEN].config.items():
        if values.get(key) is not None:
            fields |= dict.fromkeys(ours, values[key])
    if model.get("mlm_activation") not in (None, values.get("hidden_activation", "gelu")):
        fields["lm_activation"] = model["mlm_activation"]
    for name in ("activation", "lm_activation"):
        if fields.get(name) == "gelu":
            fields[name] = record.formats[format].gelu
        elif fields.get(name) == model_garden.EXACT_GELU:
            fields[name] = "gelu"
    return record, huggingface.config_from(record, fields, file)


def _read_task(file: Path, content: Any, tensors: Tensors) -> dict[str, Any]:
    """Entries of Hugging Face's config for the labels in ``params.yaml``.

    Raises:
        CheckpointError: if labels are invalid, or the head is not the one described.
    """
    task = content["task"]
    model = task["model"]
    names, count, pooler = (
        task.get("class_names"),
        model.get("num_classes"),
        model.get("use_encoder_pooler"),
    )
    texts = isinstance(names, list) and all(isinstance(label, str) for label in names)
    if names is not None and not texts:
        raise CheckpointError(
            f"{file}: class_names must be a list of strings, got {truncated_repr(names)}."
        )
    for key, said, head in (
        ("num_classes", count, "sequence"),
        ("class_names", names and len(names), "tokens"),
    ):
        kernel = f"{head}/kernel"
        if said and kernel in tensors and tensors.shape(kernel)[-1:] != (said,):
            raise CheckpointError(
                f"{file} has {truncated_repr(said)} {key}, but {tensors.stored_name(kernel)} has "
                f"the shape {tensors.shape(kernel)}."
            )
    own = any(name.startswith(_REPLACED) for name in tensors)
    if "sequence/kernel" in tensors and pooler is not None and pooler is own:
        raise CheckpointError(
            f"{file} has use_encoder_pooler = {pooler}, but the checkpoint has "
            f"{'a' if own else 'no'} pooler of the classifier."
        )
    return {"id2label": {str(i): name for i, name in enumerate(names)}} if names else {}


def _indices(directory: Path) -> list[Path]:
    return [file for file in directory.glob("*.index") if file.is_file()]


def _prefix(directory: Path) -> Path:
    prefixes = sorted(file.name.removesuffix(".index") for file in _indices(directory))
    if not prefixes:
        raise CheckpointError(
            f"No weights in {directory}: expected bert_model.ckpt.index, or another *.index."
        )
    chosen = [name for name in _PREFERRED if name in prefixes] or prefixes
    if len(prefixes) > 1 and chosen is prefixes:
        latest = _latest(directory / "checkpoint")
        if latest not in prefixes:
            raise CheckpointError(
                f"{directory} has several checkpoints and does not specify one: "
                f"{join_names(prefixes)}."
            )
        chosen = [latest]
    return directory / chosen[0]


def _latest(file: Path) -> str | None:
    """Returns the last checkpoint that ``checkpoint`` lists; None if there is no such file."""
    if not os.path.lexists(file):
        return None
    text = parsing.read_text(file, CheckpointError)
    try:
        state = text_format.Parse(text, checkpoint_state_pb2.CheckpointState())
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not a list of checkpoints: {truncated(error)}") from error
    return Path(state.model_checkpoint_path).name


def _open(prefix: Path) -> tuple[Any, dict[str, tuple[tuple[int, ...], str]]]:
    parts = sorted(prefix.parent.glob(f"{prefix.name}.data-*-of-*"))
    last = parts[0].name.rpartition("-")[2] if parts else "1"
    if not re.fullmatch(r"[0-9]{1,5}", last) or not (count := int(last)):
        raise CheckpointError(f"{parts[0]} is not the name of a data file, which ends in a number.")
    for i in range(count):
        file = prefix.with_name(f"{prefix.name}.data-{i:05}-of-{count:05}")
        if not file.is_file():
            raise CheckpointError(f"{prefix}.index exists, but {file.name} is missing.")
    bundle_index.check(prefix.with_name(f"{prefix.name}.index"))
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        types = reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"{prefix}.index cannot be read as a TensorFlow checkpoint; it may be truncated or "
            f"damaged: {error}"
        ) from error
    sizes = {name: math.prod(shapes[name]) * types[name].size for name in shapes}
    held = sum(file.stat().st_size for file in parts)
    if sum(sizes.values()) > held:
        raise CheckpointError(
            f"{prefix}.index declares tensors of {sum(sizes.values()):,} bytes, but its data files "
            f"contain {held:,}; they may be truncated or belong to another checkpoint."
        )
    names = {name: (tuple(shapes[name]), type_name(types[name])) for name in sorted(shapes)}
    return reader, names


def _stored(prefix: Path, reader: Any, names: dict) -> Iterator[tuple[str, Stored]]:
    def read(name: str) -> Callable[[], Any]:
        return lambda: reader.get_tensor(name)

    for name, (shape, dtype) in names.items():
        yield name, Stored(prefix, name, shape, dtype, read(name))


def _garden_paths(
    prefix: Path, stored: Iterator[tuple[str, Stored]]
) -> Iterator[tuple[str, Stored]]:
    """Makes paths relative to the encoder, and replaces numbered layers by their names."""
    table = {path.removesuffix(_VALUE): tensor for path, tensor in stored}
    positions = re.compile(r"(.*?)(_position_embedding_layer|layer_with_weights-1)/embeddings")
    roots = sorted({match[1] for path in table if (match := positions.fullmatch(path))}, key=len)
    if not roots:
        raise CheckpointError(
            f"{prefix} does not contain an encoder; it has {join_names(sorted(table))}."
        )
    root = roots[0]
    own_pooler = {match[1] for path in table if (match := _OWN_POOLER.fullmatch(path))}
    inside = {path.removeprefix(root): path for path in table if path.startswith(root)}
    layer_names = _layer_names(inside)
    for path, full in inside.items():
        head, _, rest = path.partition("/")
        name = f"{layer_names[head]}/{rest}" if head in layer_names else path
        replaced = own_pooler and name.startswith(f"{_POOLER}/")
        yield (_REPLACED + name if replaced else name), table[full]
    for path, tensor in table.items():
        if path.endswith(_SHARED_TABLE):
            yield f"{_EMBEDDINGS[0]}/embeddings", tensor
        elif not path.startswith(root):
            yield _head_name(path), tensor


def _head_name(path: str) -> str:
    """Returns the name in the table of a tensor outside of the encoder."""
    if match := _OWN_POOLER.fullmatch(path):
        return f"{_POOLER}/{match[1]}"
    if path.endswith(_LM_BIAS):
        return _LM_BIAS
    if match := _HEAD.fullmatch(path):
        *layers, kind = match.groups()
        name = next(name for name, layer in zip(_HEADS.values(), layers, strict=True) if layer)
        return f"{name}/{kind}"
    return f"../{path}"


def _layer_names(paths: dict[str, str]) -> dict[str, str]:
    """Maps ``layer_with_weights-N`` to the layer's name, by their fixed order."""
    count = len({path.partition("/")[0] for path in paths if path.startswith("layer_with_weights")})
    if not count:
        return {}
    count += "layer_with_weights-0/embeddings" not in paths  # then the head contains it
    projection = [_PROJECTION] * ("layer_with_weights-4/kernel" in paths)
    layer_names = [*_EMBEDDINGS, *projection]
    layer_names += [_BLOCK.format(i=i) for i in range(count - len(layer_names) - 1)]
    return {f"layer_with_weights-{n}": place for n, place in enumerate([*layer_names, _POOLER])}


FORMAT = Format(
    f"{', '.join(_configs())} with *.index and *.data-* (TensorFlow checkpoints)", matches, read
)
