"""Which models there are, in which version, and in what state."""

import os
import pathlib
import re

from tensorflow_serving.apis import get_model_status_pb2

from bertfam_tf.serve.loader import Servable, load
from bertfam_tf.serve.status import Code, ServingError, invalid

MAX_VERSION = 2**63 - 1


class Models:
    """The models a server offers, by name. Look-ups are safe from any thread."""

    def __init__(self) -> None:
        self._loaded: dict[str, dict[int, Servable]] = {}

    def add(self, name: str, base_path: str | os.PathLike[str]) -> int:
        """Loads the latest version under `base_path` and serves it as `name`.

        Versions are the children of `base_path` with a whole number for a name, leading zeros
        allowed; other children are ignored.

        Returns:
            The version.

        Raises:
            ServingError: INVALID_ARGUMENT without the base path, NOT_FOUND without a version in
                it, and whatever `load` raises. (Serving would try again, and wait for a version
                to appear.)
        """
        version, directory = _latest(name, pathlib.Path(base_path).resolve())
        self._loaded[name] = {version: load(directory)}
        return version

    def find(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> tuple[int, Servable]:
        """The version asked for, or the latest, and its servable.

        Raises:
            ServingError: NOT_FOUND for an unknown model or version; INVALID_ARGUMENT for a label,
                since only a server's configuration file could assign one.
        """
        if label is not None:
            raise invalid(f"Unrecognized servable version label: {label}")
        versions = self._loaded.get(name, {})
        if version is None and versions:
            version = max(versions)
        if version is None or version not in versions:
            request = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise ServingError(Code.NOT_FOUND, f"Servable not found for request: {request}")
        return version, versions[version]

    def status(
        self, name: str, version: int | None = None
    ) -> get_model_status_pb2.GetModelStatusResponse:
        """The state of one version of a model, or of all.

        Every version held is AVAILABLE: a load that fails, fails the whole server.

        Raises:
            ServingError: NOT_FOUND.
        """
        versions = self._loaded.get(name, {})
        if version is not None and version not in versions:
            raise ServingError(Code.NOT_FOUND, f"Could not find version {version} of model {name}")
        if not versions:
            raise ServingError(Code.NOT_FOUND, f"Could not find any versions of model {name}")
        response = get_model_status_pb2.GetModelStatusResponse()
        for number in sorted(versions) if version is None else [version]:
            entry = response.model_version_status.add(
                version=number, state=get_model_status_pb2.ModelVersionStatus.AVAILABLE
            )
            entry.status.SetInParent()
        return response


def _latest(name: str, base_path: pathlib.Path) -> tuple[int, pathlib.Path]:
    if not base_path.exists():
        raise invalid(f"Could not find base path {base_path} for servable {name}")
    # Of two names for one version, "1" and "01", Serving takes the one that sorts last.
    versions = {
        int(child.name): child
        for child in sorted(base_path.iterdir())
        if re.fullmatch("[0-9]+", child.name) and int(child.name) <= MAX_VERSION
    }
    if not versions:
        raise ServingError(
            Code.NOT_FOUND,
            f"No versions of servable {name} found under base path {base_path}. "
            "Did you forget to name your leaf directory as a number (eg. '/1/')?",
        )
    return max(versions.items())
