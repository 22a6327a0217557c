"""Runs the REST API: in the foreground with `serve`, in a thread with `running_server`."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import uvicorn

from bertfam_tf.serve import rest
from bertfam_tf.serve.models import Models


class RunningServer(NamedTuple):
    """A server that accepts requests.

    Attributes:
        url: without a path, e.g. "http://127.0.0.1:8501".
        port: the port it listens on.
        model_name: the model's name.
        version: the model's version.
    """

    url: str
    port: int
    model_name: str
    version: int


class _Uvicorn(uvicorn.Server):
    """Calls back once it accepts requests, and returns from a signal instead of raising it anew."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    base_path: str | os.PathLike[str],
    *,
    model_name: str = "model",
    host: str = "127.0.0.1",
    rest_port: int = 8501,
    ready: Callable[[RunningServer], None] | None = None,
) -> None:
    """Serves the latest version under `base_path` until SIGTERM or SIGINT, then returns.

    Args:
        base_path: a directory with one child per version: `1/`, `2/`, …
        model_name: the name in the URL, `/v1/models/<model_name>:predict`.
        host: the address to listen on; "0.0.0.0" is every one.
        rest_port: 0 picks a free port.
        ready: called once requests are accepted, after a line that says so is printed.

    Raises:
        ServingError: when the model does not load; as in Serving, no port opens then.
        OSError: when the port is taken.
    """

    def announce(running: RunningServer) -> None:
        url = f"{running.url}/v1/models/{model_name}"
        print(f"Serving version {running.version} of {model_name} at {url}", flush=True)
        if ready is not None:
            ready(running)

    server, listener = _build(base_path, model_name, host, rest_port, announce)
    server.run(sockets=[listener])


@contextlib.contextmanager
def running_server(
    base_path: str | os.PathLike[str],
    *,
    model_name: str = "model",
    host: str = "127.0.0.1",
    rest_port: int = 0,
    timeout_s: float = rest.TIMEOUT_S,
    max_body_bytes: int = rest.MAX_BODY_BYTES,
) -> Iterator[RunningServer]:
    """As `serve`, in a background thread, for as long as the context lasts.

    Args:
        timeout_s: a prediction that takes longer is answered 504.
        max_body_bytes: a longer request body is answered 413.
    """
    accepting = threading.Event()
    answer: list[RunningServer] = []

    def started(running: RunningServer) -> None:
        answer.append(running)
        accepting.set()

    def run() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            accepting.set()

    server, listener = _build(
        base_path, model_name, host, rest_port, started, timeout_s, max_body_bytes
    )
    thread = threading.Thread(target=run, name="bertfam_tf.serve", daemon=True)
    thread.start()
    accepting.wait()
    try:
        if not answer:
            raise RuntimeError("the server stopped before it accepted requests")
        yield answer[0]
    finally:
        server.should_exit = True
        thread.join()


def _build(
    base_path: str | os.PathLike[str],
    model_name: str,
    host: str,
    rest_port: int,
    started: Callable[[RunningServer], None],
    timeout_s: float = rest.TIMEOUT_S,
    max_body_bytes: int = rest.MAX_BODY_BYTES,
) -> tuple[_Uvicorn, socket.socket]:
    models = Models()
    version = models.add(model_name, base_path)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, rest_port), family=family)
    port = listener.getsockname()[1]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    config = uvicorn.Config(
        rest.app(models, timeout_s=timeout_s, max_body_bytes=max_body_bytes),
        loop="asyncio",
        http="h11",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(timeout_s) + 1,
    )
    running = RunningServer(url, port, model_name, version)
    return _Uvicorn(config, lambda: started(running)), listener
