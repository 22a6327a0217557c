"""The models of a server, their versions and states."""

import contextlib
import dataclasses
import logging
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Mapping

from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import get_model_status_pb2, model_pb2
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from bertfam_serve import model_server_config
from bertfam_serve.servable_loader import AroundWarmUp, Wrap, load_for
from bertfam_tf.export.runtime.servable import Servable, ServableLike
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

logger = logging.getLogger(__name__)

_State = get_model_status_pb2.ModelVersionStatus


@dataclasses.dataclass
class _Version:
    """A version of a model, from its first appearance until it is unloaded.

    A version that appears again after that is a new object.
    """

    number: int
    directory: pathlib.Path
    state: int = _State.START
    error: ServingError | None = None
    servable: ServableLike | None = None
    failures: int = 0
    retry_at: float = 0.0
    unloaded: bool = False

    def end(self) -> None:
        self.state = _State.END


class Models:
    """The models of a server, by name. Thread-safe.

    Look-ups take no lock and never wait. Changes (``add``, ``configure``, ``poll``) are serialized
    and load models in the calling thread. A new version is loaded before the version that it
    replaces is unloaded; requests in progress keep the old version alive.

    Args:
        wrap: wraps each ``Servable``, for example to batch requests; see ``ServableLike``.
        around_warm_up: takes a version directory and makes a context manager in which its warm-up
            requests run, for example to measure their duration.
        max_load_retries: how often loading a version is retried.
        retry_wait_s: seconds between two attempts.
        labels_for_unavailable: whether new labels may refer to versions that are not available.
        rows_per_run: the same as in ``servable_loader.load_for``.
        session_config: the same as in ``capi.Session``.
    """

    def __init__(
        self,
        *,
        wrap: Wrap | None = None,
        around_warm_up: AroundWarmUp | None = None,
        max_load_retries: int = 5,
        retry_wait_s: float = 60.0,
        labels_for_unavailable: bool = False,
        rows_per_run: int = 0,
        session_config: config_pb2.ConfigProto | None = None,
    ) -> None:
        self._session_config = session_config
        self._rows_per_run = rows_per_run
        self._wrap = wrap
        self._around_warm_up = around_warm_up
        self._max_load_retries = max_load_retries
        self._retry_wait_s = retry_wait_s
        self._labels_for_unavailable = labels_for_unavailable
        self._changing = threading.RLock()
        # Held while _versions is read or changed, but not while a model is loaded.
        self._lock = threading.Lock()
        self._versions: dict[str, dict[int, _Version]] = {}
        self._configs: dict[str, ModelConfig] = {}
        self._wanted: dict[str, dict[int, pathlib.Path]] = {}
        self._logged_errors: dict[str, str] = {}
        self._alive: weakref.WeakSet[Servable] = weakref.WeakSet()
        # Replaced, never modified, so that readers need no lock.
        self._available: Mapping[str, Mapping[int, ServableLike]] = {}
        self._labels: Mapping[str, Mapping[str, int]] = {}

    # ----------------------------------------------------------------------------- look-ups

    def names(self) -> list[str]:
        """Returns the names of the configured models, available or not."""
        return list(self._configs)

    def find(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> tuple[int, ServableLike]:
        """Looks up a version of a model; the latest available one by default.

        Returns:
            The version and its servable.

        Raises:
            ServingError: NOT_FOUND for an unknown model or version; INVALID_ARGUMENT for an
                unknown label.
        """
        if label is not None:
            labels = self._labels.get(name, {})
            if label not in labels:
                raise invalid(f"Unrecognized servable version label: {label}")
            version = labels[label]
        versions = self._available.get(name, {})
        if version is None and versions:
            version = max(versions)
        if version is None or version not in versions:
            request = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise ServingError(Code.NOT_FOUND, f"Servable not found for request: {request}")
        return version, versions[version]

    def find_spec(self, spec: model_pb2.ModelSpec) -> tuple[int, ServableLike]:
        """Looks up the version that a ModelSpec names, as ``find``.

        Raises:
            ServingError: as ``find``; INVALID_ARGUMENT if the spec has no name.
        """
        if not spec.name:
            raise invalid("ModelSpec has no name specified.")
        choice = spec.WhichOneof("version_choice")
        if choice == "version_label":
            return self.find(spec.name, label=spec.version_label)
        return self.find(spec.name, spec.version.value if choice == "version" else None)

    def status(
        self, name: str, version: int | None = None
    ) -> get_model_status_pb2.GetModelStatusResponse:
        """Returns the state of one version of a model, or of all versions.

        A version is START, LOADING, AVAILABLE, UNLOADING (while requests in progress use a
        replaced version) and END. A version that fails to load is LOADING with the error while
        there are retries left, and then END with the error.

        Raises:
            ServingError: NOT_FOUND for an unknown model or version.
        """
        response = get_model_status_pb2.GetModelStatusResponse()
        with self._lock:
            versions = self._versions.get(name, {})
            if version is not None and version not in versions:
                raise ServingError(
                    Code.NOT_FOUND, f"Could not find version {version} of model {name}"
                )
            if not versions:
                raise ServingError(Code.NOT_FOUND, f"Could not find any versions of model {name}")
            for number in sorted(versions) if version is None else [version]:
                known = versions[number]
                entry = response.model_version_status.add(version=number, state=known.state)
                entry.status.SetInParent()
                if known.error is not None:
                    entry.status.error_code = int(known.error.code)
                    entry.status.error_message = known.error.message
        return response

    # ------------------------------------------------------------------------------ changes

    def add(self, name: str, base_path: str | os.PathLike[str]) -> int:
        """Loads the latest version under ``base_path`` and serves it as ``name``.

        Returns:
            The version.

        Raises:
            ServingError: INVALID_ARGUMENT if the base path does not exist or the name is in use,
                NOT_FOUND if there is no version, and any error of ``load``. The model is not added.
                (Serving would retry, or wait for a version to appear.)
        """
        with self._changing:
            if name in self._configs:
                raise invalid(f"Illegal to list model {name} multiple times in config list")
            self._configs[name] = model_server_config.model_config(name, base_path)
            error = self._update(self._configs[name])
            if error is not None:
                self._remove(name)
                with self._lock:
                    del self._versions[name]
                raise error
            return self.find(name)[0]

    def configure(self, config: ModelServerConfig) -> None:
        """Serves the models of a configuration, and unloads all others.

        Returns when all new models are available. Labels are assigned first, so they can refer
        only to versions that are already available. Versions are identified by model and number:
        a loaded version is not loaded again if the base path changes.

        Raises:
            ServingError: INVALID_ARGUMENT or FAILED_PRECONDITION for an invalid configuration or
                label; nothing has changed. UNKNOWN if a new model did not become available; the
                rest of the configuration is applied, and loading is retried.
        """
        with self._changing:
            if config.WhichOneof("config") is None:
                return
            configs = model_server_config.checked(config, self._configs)
            labels = self._checked_labels(configs)
            new = configs.keys() - self._configs.keys()
            for name in self._configs.keys() - configs.keys():
                self._remove(name)
            self._configs = dict(configs)
            self._labels = labels
            errors = {name: self._update(model) for name, model in configs.items()}
            failed = {name: error for name, error in errors.items() if error and name in new}
            if failed:
                causes = "".join(
                    f"{{{{name: {name}}} due to error: {error}}}, "
                    for name, error in sorted(failed.items())
                )
                raise ServingError(
                    Code.UNKNOWN, f"{len(failed)} model(s) did not become available: {{{causes}}}"
                )

    def poll(self) -> None:
        """Scans the base paths once, and loads and unloads versions accordingly."""
        with self._changing:
            for config in self._configs.values():
                self._update(config)

    def retry(self) -> None:
        """Retries versions that failed to load and are due, without scanning for new ones."""
        with self._changing:
            for name in self._configs:
                self._reconcile(name)

    def close(self) -> None:
        """Unloads all models and cancels runs in progress."""
        with self._changing:
            for name in list(self._configs):
                self._remove(name)
            for servable in list(self._alive):
                servable.close()

    # ----------------------------------------------------------------------------- internals

    def _checked_labels(self, models: Mapping[str, ModelConfig]) -> dict[str, dict[str, int]]:
        labels = {name: dict(model.version_labels) for name, model in models.items()}
        for name, assigned in labels.items():
            for label, version in assigned.items():
                if version in self._available.get(name, {}):
                    continue
                moved = self._labels.get(name, {}).get(label, version) != version
                if moved or not self._labels_for_unavailable:
                    raise ServingError(
                        Code.FAILED_PRECONDITION,
                        f"Request to assign label to version {version} of model {name}, "
                        "which is not currently available for inference",
                    )
        return labels

    def _remove(self, name: str) -> None:
        del self._configs[name]
        self._wanted[name] = {}
        self._reconcile(name)
        del self._wanted[name]

    def _update(self, config: ModelConfig) -> ServingError | None:
        """Scans a base path and reconciles; returns the reason if no version is available."""
        name: str = config.name
        self._wanted.setdefault(name, {})
        with self._lock:
            self._versions.setdefault(name, {})
        try:
            versions = model_server_config.versions_wanted(config)
        except ServingError as error:
            if self._logged_errors.get(name) != error.message:  # once, not in every poll
                logger.error("%s", error.message)
            self._logged_errors[name] = error.message
            return error
        self._logged_errors.pop(name, None)
        if not versions and self._wanted[name]:
            logger.warning("No versions of servable %s are left; unloading it", name)
        self._wanted[name] = versions
        self._reconcile(name)
        if self._available.get(name):
            return None
        with self._lock:
            errors = [version.error for version in self._versions[name].values() if version.error]
        return (
            errors[-1]
            if errors
            else ServingError(
                Code.NOT_FOUND,
                f"No versions of servable {name} found under base path {config.base_path}. "
                "Did you forget to name your leaf directory as a number (eg. '/1/')?"
                f"{model_server_config.right_level(config.base_path)}",
            )
        )

    def _reconcile(self, name: str) -> None:
        """Loads wanted versions and unloads others, so that a version is always available."""
        target = self._wanted.get(name, {})
        versions = self._versions.get(name, {})
        with self._lock:
            for number, version in versions.items():
                if number not in target and version.servable is None and not version.unloaded:
                    version.unloaded = True  # it never loaded
                    version.end()
            for number, directory in target.items():
                if number not in versions or versions[number].unloaded:
                    versions[number] = _Version(number, directory)
        while True:
            available = [v for v in versions.values() if v.servable is not None]
            unwanted = [v for v in available if v.number not in target]
            if unwanted and (not target or len(unwanted) < len(available) or len(unwanted) > 1):
                self._unload(name, min(unwanted, key=lambda v: v.number))
                continue
            due = [v for v in versions.values() if self._should_load(v)]
            if not due:
                return
            self._load(name, max(due, key=lambda v: v.number))

    def _should_load(self, version: _Version) -> bool:
        is_loading = version.state in (_State.START, _State.LOADING)
        return is_loading and version.retry_at <= time.monotonic()

    def _load(self, name: str, version: _Version) -> None:
        version.state = _State.LOADING
        try:
            servable = load_for(
                name,
                version.directory,
                wrap=self._wrapped,
                around_warm_up=self._around_warm_up,
                rows_per_run=self._rows_per_run,
                session_config=self._session_config,
            )
        except Exception as error:
            if not isinstance(error, ServingError):
                logger.exception("Loading version %d of %s failed", version.number, name)
                error = ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}")
            # A copy: the traceback would keep a model in memory that has failed its warm-up.
            kept = ServingError(error.code, error.message)
            logger.error("Loading version %d of %s: %s", version.number, name, kept)
            with self._lock:
                version.error = kept
                version.failures += 1
                version.retry_at = time.monotonic() + self._retry_wait_s
                if version.failures > self._max_load_retries:
                    version.end()
            return
        with self._lock:
            version.servable, version.error, version.state = servable, None, _State.AVAILABLE
        self._publish(name)
        logger.info("Version %d of %s is available", version.number, name)

    def _wrapped(self, servable: Servable) -> ServableLike:
        self._alive.add(servable)
        return servable if self._wrap is None else self._wrap(servable)

    def _unload(self, name: str, version: _Version) -> None:
        servable = version.servable
        with self._lock:
            version.servable, version.state, version.unloaded = None, _State.UNLOADING, True
        self._publish(name)
        ended = version.end
        with contextlib.suppress(TypeError):
            weakref.finalize(servable, ended).atexit = False
            return
        ended()  # a wrapper without support for weak references

    def _publish(self, name: str) -> None:
        ready = {n: v.servable for n, v in self._versions[name].items() if v.servable is not None}
        self._available = {**self._available, name: ready}
