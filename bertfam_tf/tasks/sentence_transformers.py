"""The files that sentence-transformers adds to a transformers model and its tokenizer.

``modules.json`` lists the modules in order: a transformer, pooling, dense layers, normalization.
Each has a folder; the transformer is in the root, in older directories in ``0_Transformer``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.checkpoints import CheckpointError, fill, safetensors
from bertfam_tf.checkpoints.fill import stored
from bertfam_tf.checkpoints.huggingface import read_weights
from bertfam_tf.checkpoints.safetensors import SINGLE
from bertfam_tf.models.base import plain_weights
from bertfam_tf.names import truncated_repr
from bertfam_tf.tasks.module_files import (
    LIBRARY,
    check_names,
    listed,
    read_object,
    typed,
    write_json,
)
from bertfam_tf.tasks.pretrained import Published, tokenizer_length
from bertfam_tf.text import Tokenizer, WordPieceTokenizer
from bertfam_tf.user_warnings import warn

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_TRANSFORMER = "sentence_bert_config.json"
_CONFIG = "config.json"
_TORCH = "torch.nn.modules."
# sentence-transformers' names of poolings, with our name and the key in files before version 5.
_POOLINGS = {
    "cls": ("first", "pooling_mode_cls_token"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "mean_sqrt_len_tokens": ("mean_sqrt_length", "pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean": ("weighted_mean", "pooling_mode_weightedmean_tokens"),
    "lasttoken": ("last", "pooling_mode_lasttoken"),
}
_MASKED = ("Transformer", "MLMTransformer")
_RELU = ("relu",)
_SPARSE = f"{LIBRARY}sparse_encoder.models"
_OF_EMBEDDERS = {"Pooling", "Dense", "Normalize"}
_OF_CROSS_ENCODERS = {"sentence_transformers", "sbert_ce_default_activation_function"}
# Classes of torch.nn, by the names of ``layers.activation``.
_ACTIVATIONS = {
    None: "linear.Identity",
    "tanh": "activation.Tanh",
    "relu": "activation.ReLU",
    "gelu": "activation.GELU",
    "silu": "activation.SiLU",
}
_WEIGHTS = {"kernel": "linear.weight|T", "bias": "linear.bias"}
# Settings of a transformer module for text inputs only.
_PLAIN: dict[str, Any] = {
    "processing_kwargs": {},
    "processor_kwargs": {},
    "tokenizer_args": {},
    "query_expansion": None,
}


class _Directory(Published):
    """Reads files that all of the library's model types have."""

    library = "sentence-transformers"

    def __init__(self, directory: Path):
        super().__init__(directory)
        self._lower_case = False

    def _read_transformer(self, folder: Path, task: str, output: str = "token_embeddings") -> None:
        """Reads the config of the transformer module: maximum length and lower-casing.

        Args:
            folder: the module's folder.
            task: the expected ``transformer_task``.
            output: the expected ``module_output_name``.
        """
        file = folder / _TRANSFORMER
        # Old releases had a class, and a name of this file, per family.
        older = sorted(folder.glob("sentence_*_config.json"))
        if not file.is_file() and older:
            file = older[0]
        said = read_object(file)
        expected = {**_PLAIN, "transformer_task": task, "module_output_name": output}
        for key, plain in expected.items():
            if said.get(key) not in (None, plain):
                raise CheckpointError(
                    f"{file} has {key} = {truncated_repr(said[key])}, expected {plain!r}."
                )
        self._lower_case = typed(file, said, "do_lower_case", bool, False)
        length = typed(file, said, "max_seq_length", int, None)
        if length is None:
            self.options |= tokenizer_length(folder)
            return
        if length < 1:
            raise CheckpointError(f"{file} has a maximum length of {length}, expected at least 1.")
        self.options["max_length"] = length

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Returns the transformer's tokenizer, lower-casing if ``do_lower_case`` is set."""
        config = tokenizer.get_config()
        if not self._lower_case or config.get("lower_case"):
            return tokenizer
        if not isinstance(tokenizer, WordPieceTokenizer):
            raise CheckpointError(
                f"{self.model} has do_lower_case, which is not supported for the cased "
                f"{type(tokenizer).__name__} there."
            )
        # sentence-transformers lower-cases first, and keeps accents.
        accents = bool(config.get("strip_accents"))
        return tokenizer.from_config({**config, "lower_case": True, "strip_accents": accents})


class Modules(_Directory):
    """The modules of an embedder (``SentenceTransformer``); none without ``modules.json``.

    Raises:
        CheckpointError: for a file that is missing or damaged, a module, pooling or activation
            that is not supported, or a path outside of the directory. No class that a file names
            is imported.
    """

    loader = "SentenceTransformer"

    def __init__(self, directory: Path):
        super().__init__(directory)
        self._file = directory / _MODULES
        self._dense: list[Path] = []
        if not self._file.exists():
            return
        self.options = {"normalize": False, "projections": []}
        for kind, folder in self._listed():
            if self.options["normalize"] and kind != "Normalize":
                raise self._error(f"has a module {kind!r} after the normalization")
            if kind == "Transformer":
                self.model = folder
                self._read_transformer(folder, "feature-extraction")
            elif kind == "Pooling":
                self._read_pooling(folder)
            elif kind == "Dense":
                self.options["projections"].append(_projection(folder))
                self._dense.append(folder)
            elif kind == "Normalize":
                check_names(folder / _CONFIG, read_object(folder / _CONFIG))
                self.options["normalize"] = True
            else:
                known = "Transformer, Pooling, Dense, Normalize"
                raise self._error(f"has a module {kind!r}, expected one of {known}")
        self.options |= _prompts(directory / _PROMPTS)

    @classmethod
    def matches(cls, directory: Path) -> bool:
        return "Pooling" in _kinds(directory)

    def _listed(self) -> list[tuple[str, Path]]:
        """The kind and folder of each module: a transformer, at most one pooling, and others."""
        entries = listed(self._file)
        kinds = [kind for kind, _ in entries]
        if kinds[:1] != ["Transformer"] or kinds.count("Transformer") > 1:
            raise self._error("does not begin with its only Transformer")
        if "Pooling" in kinds[2:] or (len(kinds) > 1 and "Pooling" not in kinds):
            raise self._error("does not have a single Pooling, after the Transformer")
        return entries

    def _read_pooling(self, folder: Path) -> None:
        said = read_object(folder / _CONFIG)
        if "pooling_mode" in said:
            stated = said["pooling_mode"]
            modes = stated if isinstance(stated, list) else [stated]
        else:
            known = {key: mode for mode, (_, key) in _POOLINGS.items()}
            chosen = [k for k, on in said.items() if k.startswith("pooling_mode_") and on]
            # sentence-transformers concatenates in this order, whatever the order in the file.
            modes = sorted((known.get(key, key) for key in chosen), key=[*_POOLINGS, *chosen].index)
            if said and not modes:
                modes = ["mean"]  # the library's default
        if not modes or not all(isinstance(m, str) and m in _POOLINGS for m in modes):
            raise CheckpointError(
                f"{folder} pools by {truncated_repr(modes)}, expected some of "
                f"{', '.join(_POOLINGS)}."
            )
        names = [_POOLINGS[mode][0] for mode in modes]
        self.options["pooling"] = names[0] if len(names) == 1 else names
        self.options["include_prompt"] = typed(folder / _CONFIG, said, "include_prompt", bool, True)

    def _warn_of_similarity(self) -> None:
        file = self._file.with_name(_PROMPTS)
        name = read_object(file).get("similarity_fn_name")
        # Vectors of length 1 have the same order by each similarity.
        if name not in (None, "cosine") and not self.options.get("normalize", True):
            warn(
                f"{file} compares vectors by {truncated_repr(name)}; score, bertfam index and "
                "bertfam search compare them by the cosine."
            )

    def fill(self, task: Any) -> None:
        """Loads the weights of the dense layers, if the task has the same layers."""
        self._warn_of_similarity()
        if [asdict(projection) for projection in task.projections] != self.options.get(
            "projections", []
        ):
            warn(f"The projections are initialized at random: {self.model} has others.")
            return
        for layer, folder in zip(task.projection_layers, self._dense, strict=True):
            names = {v.path: _WEIGHTS[v.path.rpartition("/")[2]] for v in layer.weights}
            what = f"{folder} and the layer that its {_CONFIG} describes"
            fill(layer.weights, read_weights(folder), names, (), what)

    @staticmethod
    def write(task: Any, directory: Path) -> None:
        """Writes the files next to the transformer's."""
        _write_modules(task, directory)

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._file} {problem}.")


class CrossEncoder(_Directory):
    """The modules of a ``CrossEncoder``, which may have no ``modules.json``.

    Raises:
        CheckpointError: for a file that is damaged, or a module, activation or prompt that is not
            supported. No class that a file names is imported.
    """

    loader = "CrossEncoder"

    def __init__(self, directory: Path):
        super().__init__(directory)
        modules = directory / _MODULES
        if modules.exists():
            entries = listed(modules)
            kinds = [kind for kind, _ in entries]
            if kinds[:1] != ["Transformer"] or set(kinds[1:]) - _OF_EMBEDDERS:
                raise CheckpointError(
                    f"{modules} has the modules {', '.join(kinds)}, expected a Transformer alone, "
                    "as cross-encoders with one label have it."
                )
            self.model = entries[0][1]
            if len(kinds) > 1:  # an embedder, whose transformer gets a new head
                return
        self._read_transformer(self.model, "sequence-classification", "scores")
        _without_prompts(directory / _PROMPTS)
        config, stored = read_object(self.model / _CONFIG), read_object(directory / _PROMPTS)
        theirs = config.get("sentence_transformers")
        name = (
            stored.get("activation_fn")
            or (theirs.get("activation_fn") if isinstance(theirs, dict) else theirs)
            or config.get("sbert_ce_default_activation_function")
        )
        known: dict[Any, str | None] = {
            None: "sigmoid",
            f"{_TORCH}activation.Sigmoid": "sigmoid",
            f"{_TORCH}{_ACTIVATIONS[None]}": None,
        }
        if not isinstance(name, str | None) or name not in known:
            raise CheckpointError(
                f"{self.model / _CONFIG} has the activation {truncated_repr(name)}, expected "
                f"{_TORCH}activation.Sigmoid or {_TORCH}{_ACTIVATIONS[None]}."
            )
        self.options["activation"] = known[name]

    @classmethod
    def matches(cls, directory: Path) -> bool:
        if {"Pooling", "SpladePooling"} & set(_kinds(directory)):
            return False
        kind = read_object(directory / _PROMPTS).get("model_type")
        config = read_object(directory / _CONFIG)
        return kind == "CrossEncoder" or not _OF_CROSS_ENCODERS.isdisjoint(config)

    @staticmethod
    def write(task: Any, directory: Path) -> None:
        """Adds the activation to ``config.json``."""
        file = directory / _CONFIG
        kind = "activation.Sigmoid" if task.activation else _ACTIVATIONS[None]
        said = {"activation_fn": f"{_TORCH}{kind}", "version": "4.0.0"}
        write_json(file, {**read_object(file), "sentence_transformers": said})


class SparseEncoder(_Directory):
    """The modules of a ``SparseEncoder``; none without ``modules.json``.

    Raises:
        CheckpointError: for a file that is missing or damaged, or a module, activation or prompt
            that is not supported. No class that a file names is imported.
    """

    loader = "SparseEncoder"

    def __init__(self, directory: Path):
        super().__init__(directory)
        modules = directory / _MODULES
        if not modules.exists():
            return
        entries = listed(modules)
        kinds = [kind for kind, _ in entries]
        if len(kinds) != 2 or kinds[0] not in _MASKED or kinds[1] != "SpladePooling":
            raise CheckpointError(
                f"{modules} has the modules {', '.join(kinds)}, expected a Transformer and a "
                "SpladePooling."
            )
        self.model = entries[0][1]
        self._read_transformer(self.model, "fill-mask")
        _without_prompts(directory / _PROMPTS)
        file = entries[1][1] / _CONFIG
        said = read_object(file)
        for key, known in (("pooling_strategy", ("max", "sum")), ("activation_function", _RELU)):
            if said.get(key, known[0]) not in known:
                raise CheckpointError(
                    f"{file} has {key} = {truncated_repr(said[key])}, expected one of "
                    f"{', '.join(known)}."
                )
        self.options["pooling"] = said.get("pooling_strategy", "max")

    @classmethod
    def matches(cls, directory: Path) -> bool:
        return "SpladePooling" in _kinds(directory)

    @staticmethod
    def write(task: Any, directory: Path) -> None:
        """Writes the files next to the transformer's."""
        folder = directory / "1_SpladePooling"
        folder.mkdir()
        config = {"pooling_strategy": task.pooling, "activation_function": _RELU[0]}
        write_json(folder / _CONFIG, config)
        kinds = (("", "MLMTransformer"), (folder.name, "SpladePooling"))
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"{_SPARSE}.{kind}"}
            for i, (path, kind) in enumerate(kinds)
        ]
        write_json(directory / _MODULES, modules)
        write_json(directory / _TRANSFORMER, {"max_seq_length": task.max_length})
        write_json(directory / _PROMPTS, {"model_type": "SparseEncoder", "prompts": {}})


def _kinds(directory: Path) -> list[str]:
    """The kinds of the modules that a directory lists; empty without a list."""
    file = directory / _MODULES
    return [kind for kind, _ in listed(file)] if file.exists() else []


def _projection(folder: Path) -> dict[str, Any]:
    """The options of a dense layer."""
    file = folder / _CONFIG
    said = read_object(file)
    width = typed(file, said, "out_features", int, None)
    if width is None or width < 1:
        raise CheckpointError(f"{file} has no positive out_features.")
    check_names(file, said)
    if said.get("use_residual"):
        raise CheckpointError(f"{file} has use_residual, which is not supported.")
    name = said.get("activation_function", "torch.nn.Tanh")
    known = {theirs.rpartition(".")[2]: ours for ours, theirs in _ACTIVATIONS.items()}
    kind = name.rpartition(".")[2] if isinstance(name, str) else ""
    if kind not in known or not name.startswith("torch.nn."):
        raise CheckpointError(
            f"{file} has the activation {truncated_repr(name)}, expected one of torch.nn's "
            f"{', '.join(known)}."
        )
    bias = typed(file, said, "bias", bool, True)
    return {"width": width, "activation": known[kind], "bias": bias}


def _without_prompts(file: Path) -> None:
    """Raises CheckpointError if the file has a prompt that is not empty."""
    if any(_prompts(file)["prompts"].values()):
        raise CheckpointError(f"{file} has prompts, expected none.")


def _prompts(file: Path) -> dict[str, Any]:
    """The options for prompts and for truncated vectors."""
    said = read_object(file)
    prompts = said.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(x, str | None) for x in prompts.values()
    ):
        raise CheckpointError(f"{file} has prompts that are not a table of names and texts.")
    # The library writes null for a prompt that is not set.
    prompts = {name: text or "" for name, text in prompts.items()}
    options: dict[str, Any] = {"prompts": prompts}
    default = typed(file, said, "default_prompt_name", str, None)
    if default is not None:
        if default not in prompts:
            raise CheckpointError(
                f"{file} has default_prompt_name = {truncated_repr(default)}, expected one of "
                f"{', '.join(prompts) or 'its prompts, which are none'}."
            )
        options["default_prompt"] = default
    dimensions = typed(file, said, "truncate_dim", int, None)
    if dimensions is not None:
        if dimensions < 1:
            raise CheckpointError(f"{file} has truncate_dim = {dimensions}, expected at least 1.")
        options["dimensions"] = dimensions
    return options


def _write_modules(task: Any, directory: Path) -> None:
    options = task.options
    width = task.backbone.output["sequence_output"].shape[-1]
    modules: list[dict[str, Any]] = []

    def add(kind: str, config: Mapping[str, Any] | None = None) -> Path:
        number = len(modules)
        folder = directory / (f"{number}_{kind}" if number else "")
        path = folder.name if number else ""
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"{LIBRARY}models.{kind}"}
        )
        if config is not None:
            folder.mkdir()
            write_json(folder / _CONFIG, config)
        return folder

    add("Transformer")
    kinds = options.poolings
    modes = {ours: (mode, key) for mode, (ours, key) in _POOLINGS.items()}
    if len(kinds) == 1:  # as all versions read it
        pooling: dict[str, Any] = {"word_embedding_dimension": width}
        pooling |= {key: ours == kinds[0] for ours, (_, key) in modes.items()}
    else:
        pooling = {"embedding_dimension": width, "pooling_mode": [modes[k][0] for k in kinds]}
    width *= len(kinds)
    add("Pooling", {**pooling, "include_prompt": options.include_prompt})
    for projection, layer in zip(options.projections, task.projection_layers, strict=True):
        if projection.activation not in _ACTIVATIONS:
            known = ", ".join(map(str, _ACTIVATIONS))
            raise CheckpointError(
                f"Not written: the activation {projection.activation!r} is not one of {known}."
            )
        config = {
            "in_features": width,
            "out_features": projection.width,
            "bias": projection.bias,
            "activation_function": f"{_TORCH}{_ACTIVATIONS[projection.activation]}",
        }
        folder = add("Dense", config)
        tensors = {}
        for path, value in plain_weights(layer).items():
            name, _, transform = _WEIGHTS[path.rpartition("/")[2]].partition("|")
            if not np.isfinite(value).all():
                raise CheckpointError(f"Not written: {path} contains NaN or infinity.")
            tensors[name] = np.ascontiguousarray(stored(value, transform))
        safetensors.write(tensors, folder / SINGLE, {"format": "pt"})
        shutil.copymode(folder / _CONFIG, folder / SINGLE)
        width = projection.width
    if options.normalize:
        add("Normalize")
    write_json(directory / _MODULES, modules)
    write_json(
        directory / _TRANSFORMER, {"max_seq_length": options.max_length, "do_lower_case": False}
    )
    prompts = {"prompts": options.prompts, "default_prompt_name": options.default_prompt}
    cut = {} if options.dimensions is None else {"truncate_dim": options.dimensions}
    write_json(directory / _PROMPTS, {**prompts, **cut})
