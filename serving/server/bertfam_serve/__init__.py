"""A local server with TensorFlow Serving's REST and gRPC APIs.

For development, tests and single machines: routes, JSON, messages and status codes are the same as
TensorFlow Serving's, and models run in the same C++ SavedModel loader. It needs neither Keras nor
the code that created the model.

    with running_server("/exports/sentiment") as server:
        httpx.post(f"{server.url}/v1/models/model:predict", json={"instances": ["a fine film"]})
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertfam_serve.inference import Observer
    from bertfam_serve.models import Models
    from bertfam_serve.options import Options
    from bertfam_serve.server import RunningServer, running_server, serve

# Imported when first used: importing TensorFlow takes seconds, and `--help` should not wait for it.
_HOME = {
    "Models": "models",
    "Observer": "inference",
    "Options": "options",
    "RunningServer": "server",
    "running_server": "server",
    "serve": "server",
}

__all__ = ["Models", "Observer", "Options", "RunningServer", "running_server", "serve"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
