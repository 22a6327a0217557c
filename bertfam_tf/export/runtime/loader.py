"""Loads exports as TensorFlow Serving does, with the same C++ loader."""

import os
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import config_pb2

from bertfam_tf import parsing
from bertfam_tf.export.runtime import capi
from bertfam_tf.export.runtime.servable import Servable
from bertfam_tf.export.runtime.status import Code, ServingError

EXTRA = "assets.extra"
# In ``EXTRA``. Exports of this package have a card; outputs for a row do not depend on other rows.
CARD = "bertfam.json"
WARMUP = "tf_serving_warmup_requests"
_TAGS = ("serve",)


def load(version_dir: str | os.PathLike[str], *, warm_up: bool = True) -> Servable:
    """Loads the SavedModel in a version directory.

    Args:
        version_dir: the directory of ``saved_model.pb``, on any of TensorFlow's file systems.
        warm_up: whether to replay the model's warm-up requests.

    Raises:
        ServingError: as ``open_session`` and ``warm_up.replay``.
    """
    servable = Servable(open_session(version_dir))
    requests = warm_up_file(version_dir)
    if warm_up and requests is not None:
        # Only these requests need TensorFlow Serving's protos.
        from bertfam_tf.export.runtime.warm_up import replay

        replay(servable, requests)
    return servable


def open_session(
    version_dir: str | os.PathLike[str], config: config_pb2.ConfigProto | None = None
) -> capi.Session:
    """Loads a SavedModel without running it.

    Args:
        version_dir: the same as for ``load``.
        config: the same as for ``capi.Session``.

    Raises:
        ServingError: NOT_FOUND if there is no SavedModel tagged "serve"; UNIMPLEMENTED if this
            TensorFlow lacks a kernel that the model card names.
    """
    _check_kernels(version_dir)
    return capi.Session(os.fspath(version_dir), _TAGS, config)


def has_card(version_dir: str | os.PathLike[str]) -> bool:
    """Returns whether a SavedModel is an export of this package."""
    return os.path.exists(os.path.join(version_dir, EXTRA, CARD))


def read_card(version_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the model card of a SavedModel; empty if it has none that can be read."""
    try:
        card = parsing.read_json(Path(version_dir) / EXTRA / CARD)
    except (FileNotFoundError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}


def warm_up_file(version_dir: str | os.PathLike[str]) -> str | None:
    """Returns the file of a SavedModel's warm-up requests, or None if it has none."""
    path = os.path.join(version_dir, EXTRA, WARMUP)
    return path if os.path.exists(path) else None


def _check_kernels(version_dir: str | os.PathLike[str]) -> None:
    """Refuses an export that this build of TensorFlow cannot run, with a remedy.

    TensorFlow's own error ("Op type not registered") has none.
    """
    card = read_card(version_dir)
    if not isinstance(kernels := card.get("kernels"), list):
        return
    missing = [name for name in kernels if isinstance(name, str) and not capi.has_kernel(name)]
    if not missing:
        return
    int8 = card.get("int8")
    fallback = int8.get("fallback") if isinstance(int8, dict) else None
    remedy = (
        f"the same version in the model directory {fallback!r} computes in float32"
        if isinstance(fallback, str)
        else "export it with fallback=True (--fallback) for a version in float32"
    )
    raise ServingError(
        Code.UNIMPLEMENTED,
        f"{os.fspath(version_dir)} computes in {card.get('dtype')}, for which this build of "
        f"TensorFlow has no kernel ({', '.join(missing)}; builds for x86 CPUs have it): {remedy}.",
    )
