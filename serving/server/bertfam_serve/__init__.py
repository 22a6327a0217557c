"""A local server with TensorFlow Serving's REST and gRPC APIs.

For development, tests and single machines: routes, JSON, messages, status codes and error texts are
those of TensorFlow Serving, and models run in the same C++ SavedModel loader. It needs neither
Keras nor the code that created the model.

    with running_server("/exports/sentiment") as server:
        httpx.post(f"{server.url}/v1/models/model:predict", json={"instances": ["a fine film"]})
"""

from typing import TYPE_CHECKING

from bertfam_tf.lazy import lazy

if TYPE_CHECKING:
    from bertfam_serve.inference import Observer
    from bertfam_serve.models import Models
    from bertfam_serve.servable import Servable, ServableLike
    from bertfam_serve.servable_loader import load
    from bertfam_serve.server import Options, RunningServer, running_server, serve
    from bertfam_serve.status import Code, ServingError

# Lazy, because importing TensorFlow takes seconds, and `--help` should not wait for it.
_HOME = {
    "Code": "status",
    "Models": "models",
    "Observer": "inference",
    "Options": "server",
    "RunningServer": "server",
    "Servable": "servable",
    "ServableLike": "servable",
    "ServingError": "status",
    "load": "servable_loader",
    "running_server": "server",
    "serve": "server",
}

__all__ = [
    "Code",
    "Models",
    "Observer",
    "Options",
    "RunningServer",
    "Servable",
    "ServableLike",
    "ServingError",
    "load",
    "running_server",
    "serve",
]

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)
