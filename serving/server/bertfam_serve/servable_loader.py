"""Loads a version of a model with the options of a server."""

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from tensorflow.core.protobuf import config_pb2

from bertfam_serve import packed_weights
from bertfam_serve.chunks import ChunkedServable
from bertfam_tf.export.runtime import loader, warm_up
from bertfam_tf.export.runtime.servable import Servable, ServableLike

Wrap = Callable[[Servable], ServableLike]
AroundWarmUp = Callable[[str | os.PathLike[str]], AbstractContextManager[None]]


def load_for(
    model: str,
    version_dir: str | os.PathLike[str],
    *,
    wrap: Wrap | None = None,
    around_warm_up: AroundWarmUp | None = None,
    rows_per_run: int = 0,
    session_config: config_pb2.ConfigProto | None = None,
) -> ServableLike:
    """Loads a version and replays its warm-up requests.

    Args:
        model: the name under which the model is served.
        version_dir: the same as for ``runtime.load``.
        wrap: wraps the servable; warm-up requests run in the wrapper, which is returned.
        around_warm_up: makes a context manager in which the warm-up requests run, if there are
            any.
        rows_per_run: larger requests run in chunks of this number of rows if the model is an
            export of bertfam; the outputs of other models may depend on all rows. 0 disables it.
        session_config: the same as for ``capi.Session``.

    Raises:
        ServingError: as ``runtime.load`` and ``packed_weights.check``.
    """
    packed_weights.check(version_dir)
    session = loader.open_session(version_dir, session_config)
    if rows_per_run and loader.has_card(version_dir):
        servable: Servable = ChunkedServable(session, model, rows_per_run=rows_per_run)
    else:
        servable = Servable(session, model)
    wrapped: ServableLike = servable if wrap is None else wrap(servable)
    requests = loader.warm_up_file(version_dir)
    if requests is not None:
        around = around_warm_up or contextlib.nullcontext
        with around(version_dir):
            warm_up.replay(wrapped, requests)
    return wrapped
