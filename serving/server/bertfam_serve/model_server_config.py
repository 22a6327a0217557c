"""ModelServerConfig: names, directories and version policies of the models to serve."""

import contextlib
import os
import pathlib
import re
from collections.abc import Mapping

from tensorflow_serving.config.model_server_config_pb2 import (
    ModelConfig,
    ModelServerConfig,
    ModelType,
)

from bertfam_serve import text_format
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

PLATFORM = "tensorflow"
MAX_VERSION = 2**63 - 1
_SAVED_MODEL = "saved_model.pb"


def read_config(path: str | os.PathLike[str]) -> ModelServerConfig:
    """Reads a ModelServerConfig in protobuf text format.

    Raises:
        ServingError: NOT_FOUND if the file does not exist, INVALID_ARGUMENT if it does not parse.
    """
    config: ModelServerConfig = text_format.read(path, ModelServerConfig())
    return config


def model_config(name: str, base_path: str | os.PathLike[str]) -> ModelConfig:
    """Returns the configuration that serves the latest version of a model."""
    # Symbolic links are followed in each scan: they may change to another directory.
    absolute = os.fspath(pathlib.Path(base_path).absolute())
    return ModelConfig(name=name, base_path=absolute, model_platform=PLATFORM)


def checked(config: ModelServerConfig, old: Mapping[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Validates a configuration and returns its models by name.

    Args:
        config: the new configuration.
        old: the models that are being served.

    Raises:
        ServingError: with Serving's text: INVALID_ARGUMENT for a duplicate name, a relative base
            path, or a platform other than "tensorflow"; FAILED_PRECONDITION for a configuration
            that is not a list of models.
    """
    if config.WhichOneof("config") == "custom_model_config":
        raise ServingError(
            Code.FAILED_PRECONDITION,
            "Cannot transition to requested config. It is only legal to transition from one "
            "ModelConfigList to another.",
        )
    models: dict[str, ModelConfig] = {}
    for model in config.model_config_list.config:
        if model.name in models:
            raise invalid(f"Illegal to list model {model.name} multiple times in config list")
        models[model.name] = model
    for name, model in models.items():
        if not (model.base_path.startswith("/") or "://" in model.base_path):
            raise invalid(
                f"Expected model {name} to have an absolute path or URI; got "
                f"base_path()={model.base_path}"
            )
    for name, model in models.items():
        platform = _platform(model)
        if platform == PLATFORM:
            continue
        if name in old:
            raise invalid(
                f"Illegal to change a model's platform. For model {name} platform was "
                f"{_platform(old[name])} and new platform requested is {platform}"
            )
        raise invalid(f"Model {name} requests unsupported platform {platform}")
    return models


def _platform(model: ModelConfig) -> str:
    if model.model_type:
        if model.model_platform:
            raise invalid(
                "Illegal setting both ModelServerConfig::model_type (deprecated) and "
                f"ModelServerConfig::model_platform, model name is {model.name}"
            )
        if model.model_type != ModelType.TENSORFLOW:
            raise invalid(f"ModelServerConfig::model_type choice {model.model_type} not supported.")
        return PLATFORM
    if not model.model_platform:
        raise invalid(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform, model name is {model.name}"
        )
    platform: str = model.model_platform
    return platform


def versions_wanted(config: ModelConfig) -> dict[int, pathlib.Path]:
    """Returns the versions under a model's base path that its version policy selects.

    Versions are children of the base path whose names are integers, with or without leading zeros;
    other children are ignored. If two names mean the same version ("1" and "01"), the one that
    sorts last wins.

    Returns:
        Version number to directory.

    Raises:
        ServingError: INVALID_ARGUMENT if the base path does not exist.
    """
    base_path = pathlib.Path(config.base_path)
    try:
        children = sorted(base_path.iterdir())
    except OSError:
        raise invalid(f"Could not find base path {base_path} for servable {config.name}") from None
    versions = {int(child.name): child for child in children if _is_version(child.name)}
    policy = config.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return versions
    if kind == "specific":
        return {
            number: path for number, path in versions.items() if number in policy.specific.versions
        }
    latest = sorted(versions, reverse=True)[: max(policy.latest.num_versions, 1)]
    return {number: versions[number] for number in latest}


def right_level(base_path: str | os.PathLike[str]) -> str:
    """Returns a sentence on where the versions are, for a base path without any; or ``""``."""
    path = pathlib.Path(base_path)
    if (path / _SAVED_MODEL).is_file():
        if _is_version(path.name):
            return f" {path} is one version of a model: serve {path.parent}."
        return f" {path} is a SavedModel: move it to {path / '1'}, and serve {path}."
    below = []
    with contextlib.suppress(OSError):
        files = path.glob(f"*/*/{_SAVED_MODEL}")
        below = sorted({file.parents[1] for file in files if _is_version(file.parent.name)})
    if not below:
        return ""
    several = "" if len(below) == 1 else ", or several with --model-config-file"
    names = " or ".join(map(str, below[:3])) + (", …" if len(below) > 3 else "")
    return f" The versions are one level below: serve {names}{several}."


def _is_version(name: str) -> bool:
    return bool(re.fullmatch("[0-9]{1,100}", name)) and int(name) <= MAX_VERSION
