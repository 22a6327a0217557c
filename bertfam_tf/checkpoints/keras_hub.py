"""KerasHub presets: ``config.json`` with a ``registered_name``, and ``model.weights.h5``.

KerasHub itself is not needed. What its classes hard-code (activations, epsilons, tables that they
leave out) stands in the tables here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from bertfam_tf import parsing
from bertfam_tf.checkpoints.foreign import Layout, Source, tensors
from bertfam_tf.checkpoints.tensors import Stored, type_name
from bertfam_tf.names import listed, short, shown
from bertfam_tf.sources import CheckpointError

WEIGHTS = "model.weights.h5"
# A compressed dataset is at best so much smaller than its tensor. Trained weights hardly shrink;
# biases of zeros shrink more, but are small.
_MAX_COMPRESSION, _SMALL = 64, 64 << 10
_ANEW = "Fetch the preset again, or have KerasHub save it anew."

# Paths in the file go by class and count. Leading underscores, which came and went between
# versions, are dropped from each step.
_LEAVES = {"/vars/0": "weight", "/vars/1": "bias"}
_LAYER = "layers/transformer_encoder#{i}/"
_ENCODER = {
    "query": "self_attention_layer/query_dense",
    "key": "self_attention_layer/key_dense",
    "value": "self_attention_layer/value_dense",
    "attention": "self_attention_layer/output_dense",
    "attention_norm": "self_attention_layer_norm",
    "intermediate": "feedforward_intermediate_dense",
    "output": "feedforward_output_dense",
    "output_norm": "feedforward_layer_norm",
}
_LAYERS = {part: _LAYER + path for part, path in _ENCODER.items()}
_THREE_TABLES = {
    **_LAYERS,
    "tokens": "layers/reversible_embedding#0",
    "positions": "layers/position_embedding#0",
    "segments": "layers/embedding#0",
    "embedding_norm": "layers/layer_normalization#0",
    "pooler": "layers/dense#0",
}
_TWO_TABLES = {
    **_LAYERS,
    "tokens": "layers/token_and_position_embedding#0/token_embedding",
    "positions": "layers/token_and_position_embedding#0/position_embedding",
    "embedding_norm": "layers/layer_normalization#0",
}
_PROJECTED = {**_THREE_TABLES, "projection": "layers/dense#0", "pooler": "layers/dense#1"}

_CONFIG = {
    "vocabulary_size": ("vocab_size",),
    "num_layers": ("num_hidden_layers",),
    "num_heads": ("num_attention_heads",),
    "hidden_dim": ("hidden_size",),
    "intermediate_dim": ("intermediate_size",),
    "dropout": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "max_sequence_length": ("max_position_embeddings",),
    "num_segments": ("type_vocab_size",),
}
_DISTILBERT_CONFIG = {
    "vocabulary_size": ("vocab_size",),
    "num_layers": ("n_layers",),
    "num_heads": ("n_heads",),
    "hidden_dim": ("dim",),
    "intermediate_dim": ("hidden_dim",),
    "dropout": ("dropout", "attention_dropout"),
    "max_sequence_length": ("max_position_embeddings",),
}
_GROUPS = {"num_groups": ("num_hidden_groups",), "num_inner_repetitions": ("inner_group_num",)}
_WIDTH = {"embedding_dim": ("embedding_size",)}
# Keys of every Keras model, which say nothing about what it computes.
_SILENT = {"name", "trainable", "dtype"}


@dataclass(frozen=True)
class _Class:
    """A backbone class of KerasHub.

    Attributes:
        model_type: Hugging Face's name of what it computes.
        parts: where they are.
        config: its config key -> Hugging Face's keys.
        fixed: what it hard-codes, as Hugging Face's config would say it.
        fields: the same, as our config would say it where that one cannot.
        first_position: the position of the first token in Hugging Face's table.
        no_segments: whether Hugging Face has a table of one segment that this class lacks.
        ignored: regular expressions of names that the family has no place for.
        unprojected: ``parts`` and ``ignored`` where embeddings are as wide as the layers, if the
            class has no projection then.
    """

    model_type: str
    parts: Mapping[str, str]
    config: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, Any]
    fields: Mapping[str, Any] = field(default_factory=dict)
    first_position: int = 0
    no_segments: bool = False
    ignored: tuple[str, ...] = ()
    unprojected: tuple[Mapping[str, str], tuple[str, ...]] | None = None


def _roberta(model_type: str) -> _Class:
    return _Class(
        model_type,
        _TWO_TABLES,
        _CONFIG,
        dict(hidden_act="gelu", layer_norm_eps=1e-5, pad_token_id=1, type_vocab_size=1),
        fields={"pooler": False},
        first_position=2,
        no_segments=True,
    )


_TANH_GELU = dict(hidden_act="gelu_new", layer_norm_eps=1e-12, pad_token_id=0)
_CLASSES = {
    "BertBackbone": _Class("bert", _THREE_TABLES, _CONFIG, _TANH_GELU),
    "RobertaBackbone": _roberta("roberta"),
    "XLMRobertaBackbone": _roberta("xlm-roberta"),
    "DistilBertBackbone": _Class(
        "distilbert",
        _TWO_TABLES,
        _DISTILBERT_CONFIG,
        dict(activation="gelu", pad_token_id=0, sinusoidal_pos_embds=False),
    ),
    "AlbertBackbone": _Class(
        "albert",
        {
            **_PROJECTED,
            **{part: path.replace("{i}", "{g}.{j}") for part, path in _LAYERS.items()},
        },
        {**_CONFIG, **_WIDTH, **_GROUPS},
        _TANH_GELU,
    ),
    "ElectraBackbone": _Class(
        "electra",
        _PROJECTED,
        {**_CONFIG, **_WIDTH, "vocab_size": ("vocab_size",)},
        _TANH_GELU,
        # Its pooler was never trained: the published models have none.
        ignored=(r"layers/dense#1/.*",),
        unprojected=(_THREE_TABLES, (r"layers/dense#0/.*",)),
    ),
}


def is_in(values: Mapping[str, Any]) -> bool:
    """Whether a parsed ``config.json`` is of this kind."""
    return "registered_name" in values or "class_name" in values


def weights_of(directory: Path) -> list[Path]:
    """Files of weights that the directory has, at best one."""
    single = directory / WEIGHTS
    if single.is_file():
        return [single]
    return sorted(file for file in directory.glob("*.weights.h5") if file.is_file())


def read(directory: Path, given: Mapping[str, Any]) -> Source:
    """What the preset holds, told as Hugging Face would.

    Args:
        directory: where it lies.
        given: its parsed ``config.json``.

    Raises:
        CheckpointError: for a class or config key that is not known, weights that are missing, cut
            off or damaged.
    """
    name = str(given.get("registered_name") or given.get("class_name")).rpartition(">")[2]
    if name not in _CLASSES:
        raise CheckpointError(
            f"{directory / 'config.json'} is for KerasHub's {shown(name)}. Known: "
            f"{', '.join(sorted(_CLASSES))}."
        )
    kind = _CLASSES[name]
    config = given.get("config")
    if not isinstance(config, dict):
        raise CheckpointError(f"{directory / 'config.json'} has no 'config' of the backbone.")
    values = _values(directory, config, kind)
    weights = weights_of(directory)
    if len(weights) != 1:
        found = listed([file.name for file in weights]) if weights else "none"
        raise CheckpointError(f"No weights in {directory}: expected {WEIGHTS}, found {found}.")
    parts, ignored = dict(kind.parts), kind.ignored
    if kind.unprojected and config["embedding_dim"] == config["hidden_dim"]:
        parts, ignored = dict(kind.unprojected[0]), kind.unprojected[1]
    layout = Layout(parts, _LEAVES, ignored, kind.first_position)
    repeats = config.get("num_inner_repetitions")
    stored = ((_path(name, repeats), tensor) for name, tensor in _stored(weights[0]))
    zeros = {"segments": (1, config["hidden_dim"])} if kind.no_segments else {}
    return Source(values, tensors(stored, layout, values, zeros), dict(kind.fields))


def _values(directory: Path, config: dict[str, Any], kind: _Class) -> dict[str, Any]:
    file = directory / "config.json"
    unknown = sorted(config.keys() - kind.config.keys() - _SILENT)
    if unknown:
        raise CheckpointError(f"{file} has options that are not supported: {listed(unknown)}.")
    needed = kind.config.keys() - {"vocabulary_size", "vocab_size", "num_segments"}
    missing = sorted(needed - config.keys())
    if missing:
        raise CheckpointError(f"{file} does not say {listed(missing)}.")
    for key in sorted(kind.config.keys() & config.keys() - {"dropout"}):
        if type(config[key]) is not int or config[key] < 1:
            raise CheckpointError(f"{file}: {key} is a positive number, not {shown(config[key])}.")
    values = {
        theirs: config[key] for key, keys in kind.config.items() if key in config for theirs in keys
    }
    values["max_position_embeddings"] += kind.first_position
    return {"model_type": kind.model_type, **values, **kind.fixed}


def _path(name: str, repeats: int | None) -> str:
    """The path as the tables write it: ``x_2`` is ``x#2``, or ``x#1.0`` in groups of two."""
    steps = [step.lstrip("_") for step in name.split("/")]
    # Early files call the first step otherwise.
    steps[0] = "layers" if steps[0] == "layer_checkpoint_dependencies" else steps[0]
    if len(steps) > 1:
        match = re.fullmatch(r"(.*?)_(\d{1,6})", steps[1])
        stem, number = (match[1], int(match[2])) if match else (steps[1], 0)
        steps[1] = f"{stem}#{number}"
        if repeats and stem == "transformer_encoder":
            steps[1] = f"{stem}#{number // repeats}.{number % repeats}"
    return "/".join(steps)


def _stored(file: Path) -> Iterator[tuple[str, Stored]]:
    # Nothing is raised while HDF5 calls back.
    links: list[tuple[str, str]] = []
    items: list[tuple[str, Any]] = []
    found: list[tuple[str, Stored]] = []
    try:
        with h5py.File(file) as opened:
            opened.visititems_links(lambda name, link: links.append((name, type(link).__name__)))
            for name, kind in links:
                if kind != h5py.HardLink.__name__:
                    raise CheckpointError(
                        f"{file}: {name} is a {kind}, maybe to another file; expected tensors that "
                        f"are stored in the file itself. {_ANEW}"
                    )
            opened.visititems(lambda name, item: items.append((name, item)))
            for name, item in items:
                if not isinstance(item, h5py.Dataset):
                    continue
                _check_stored(file, name, item)
                half = item.attrs.get("dtype") == "bfloat16"
                dtype = "BF16" if half else type_name(item.dtype)
                read = _reader(file, name, half)
                found.append((name, Stored(file, name, item.shape, dtype, read)))
    except CheckpointError:
        raise
    except Exception as error:  # h5py raises errors of many kinds for damaged files
        raise CheckpointError(
            f"{file} cannot be read as HDF5; it may be cut off or damaged: {short(error)}"
        ) from error
    yield from found


def _check_stored(file: Path, name: str, dataset: h5py.Dataset) -> None:
    """Raises for a dataset whose bytes are elsewhere than in the file, or not there at all."""
    if dataset.is_virtual or dataset.external:
        raise CheckpointError(
            f"{file}: {name} has its values in another file; expected tensors that are stored in "
            f"the file itself. {_ANEW}"
        )
    if dataset.dtype.kind not in "fiubV" or not isinstance(dataset.shape, tuple):
        raise CheckpointError(f"{file}: {name} is no tensor of numbers, but {dataset.dtype}.")
    size = most = dataset.id.get_storage_size()
    if size and dataset.id.get_create_plist().get_nfilters():  # compressed, maybe
        most = max(size * _MAX_COMPRESSION, _SMALL)
    if dataset.nbytes > most:
        raise CheckpointError(
            f"{file}: {name} declares {dataset.nbytes:,} bytes, of which the file holds {size:,}; "
            f"it may be cut off or damaged. {_ANEW}"
        )


def _reader(file: Path, name: str, half: bool):
    def read() -> np.ndarray:
        with h5py.File(file) as opened:
            # HDF5 has no such type: it keeps the bytes, and Keras an attribute that says so.
            stored = opened[name]
            return np.array(stored, dtype=ml_dtypes.bfloat16 if half else None)

    return read


# Class of a preset's tokenizer -> its files' names in Hugging Face's checkpoints.
_WORDPIECE = {"vocabulary.txt": "vocab.txt"}
_BYTE_BPE = {"vocabulary.json": "vocab.json", "merges.txt": "merges.txt"}
_TOKENIZERS = {
    "BertTokenizer": _WORDPIECE,
    "DistilBertTokenizer": _WORDPIECE,
    "ElectraTokenizer": _WORDPIECE,
    "RobertaTokenizer": _BYTE_BPE,
    "AlbertTokenizer": {"vocabulary.spm": "spiece.model"},
    "XLMRobertaTokenizer": {"vocabulary.spm": "sentencepiece.bpe.model"},
}
_TOKENIZER = "tokenizer.json"
_ASSETS = Path("assets/tokenizer")


def tokenizer(directory: Path) -> tuple[dict[str, Path], dict[str, Any]] | None:
    """A preset's tokenizer, as Hugging Face names it; None without one.

    Returns:
        File name -> where it lies, and what belongs into ``tokenizer_config.json``.

    Raises:
        CheckpointError: for a class that is not known, or files that are missing or damaged.
    """
    file = directory / _TOKENIZER
    if not (directory / _ASSETS).is_dir() or not file.is_file():
        return None
    stored = parsing.read_json(file, CheckpointError)
    try:
        name = str(stored["class_name"]).rpartition(">")[2]
        config = dict(stored["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is not a tokenizer's of KerasHub: {error!r}") from error
    if name not in _TOKENIZERS:
        raise CheckpointError(
            f"{file} is for KerasHub's {shown(name)}. Known: {', '.join(sorted(_TOKENIZERS))}."
        )
    found = {}
    for theirs, ours in _TOKENIZERS[name].items():
        found[ours] = directory / _ASSETS / theirs
        if not found[ours].is_file():
            raise CheckpointError(f"{found[ours]} is missing.")
    return found, {"do_lower_case": config["lowercase"]} if "lowercase" in config else {}
