"""Runs the REST and gRPC servers: ``serve`` in the foreground, ``running_server`` in a thread."""

import contextlib
import functools
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import uvicorn
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from bertfam_serve import grpc_api, rest_api, rest_connections
from bertfam_serve.memory_trimmer import MemoryTrimmer
from bertfam_serve.model_server_config import read_config
from bertfam_serve.models import Models
from bertfam_serve.options import Options
from bertfam_serve.polling import PeriodicCall

_TRIM_S = 2.0


class RunningServer(NamedTuple):
    """A server that accepts requests.

    Attributes:
        url: without a path, for example "http://127.0.0.1:8501".
        port: the REST port.
        grpc_port: the gRPC port; None if disabled.
        grpc_target: for ``grpc.insecure_channel``, "127.0.0.1:8500"; empty if disabled.
        model_name: the model's name; empty unless there is exactly one model.
        version: the model's version; 0 unless there is exactly one model.
        models: the served models; changes take effect immediately.
    """

    url: str
    port: int
    grpc_port: int | None
    grpc_target: str
    model_name: str
    version: int
    models: Models


def serve(
    base_path: str | os.PathLike[str] | None = None,
    *,
    config: ModelServerConfig | str | os.PathLike[str] | None = None,
    ready: Callable[[RunningServer], None] | None = None,
    **options: Any,
) -> None:
    """Serves models until SIGTERM or SIGINT, then returns.

    Args:
        base_path: a directory with one child per version: ``1/``, ``2/``, …; the latest version
            is served, and replaced by newer versions when they appear.
        config: for several models, instead of ``base_path``: a ModelServerConfig, or the path of
            one in text format, which is read again every ``config_poll_s``.
        ready: called once requests are accepted, after the addresses are printed.
        **options: fields of ``Options``.

    Raises:
        ServingError: a model does not load; no port has been opened. (Serving retries first.)
        OSError: a port is in use.
        ValueError: neither or both of ``base_path`` and ``config`` are given.
    """

    def announce(running: RunningServer) -> None:
        if running.model_name:
            url = f"{running.url}/v1/models/{running.model_name}"
            print(f"Serving version {running.version} of {running.model_name} at {url}", flush=True)
        else:
            print(f"Serving at {running.url}/v1/models", flush=True)
        if running.grpc_target:
            print(f"gRPC at {running.grpc_target}", flush=True)
        if ready is not None:
            ready(running)

    with _built(base_path, config, Options(**options), announce) as run:
        run.server.run(sockets=[run.listener])


@contextlib.contextmanager
def running_server(
    base_path: str | os.PathLike[str] | None = None,
    *,
    config: ModelServerConfig | str | os.PathLike[str] | None = None,
    **options: Any,
) -> Iterator[RunningServer]:
    """Serves as ``serve`` does, in a background thread, while the context is open.

    Free ports are picked unless they are given.
    """
    accepting = threading.Event()
    answer: list[RunningServer] = []

    def started(running: RunningServer) -> None:
        answer.append(running)
        accepting.set()

    def run() -> None:
        try:
            built.server.run(sockets=[built.listener])
        finally:
            accepting.set()

    settings = Options(**{"rest_port": 0, "grpc_port": 0, **options})
    with _built(base_path, config, settings, started) as built:
        thread = threading.Thread(target=run, name="bertfam_serve", daemon=True)
        thread.start()
        accepting.wait()
        try:
            if not answer:
                raise RuntimeError("the server stopped before it accepted requests")
            yield answer[0]
        finally:
            built.server.should_exit = True
            thread.join()


class _Uvicorn(uvicorn.Server):
    """Reports when it accepts requests, returns after a signal, and stops gRPC when it stops.

    uvicorn's own server raises the signal again.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        started: Callable[[], None],
        stop_grpc: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._started = started
        self._stop_grpc = stop_grpc

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Drops the reference now: this object is part of a cycle, and gRPC's threads end when its
        # server is freed.
        stop_grpc, self._stop_grpc = self._stop_grpc, lambda: None
        stop_grpc()
        del stop_grpc
        await super().shutdown(sockets)

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


class _Run(NamedTuple):
    server: _Uvicorn
    listener: socket.socket


@contextlib.contextmanager
def _built(
    base_path: str | os.PathLike[str] | None,
    config: ModelServerConfig | str | os.PathLike[str] | None,
    options: Options,
    started: Callable[[RunningServer], None],
) -> Iterator[_Run]:
    """Builds a server: models are loaded, ports are open, gRPC is running."""
    models = Models(
        wrap=options.wrap,
        around_warm_up=options.around_warm_up,
        max_load_retries=options.max_load_retries,
        retry_wait_s=options.retry_wait_s,
        labels_for_unavailable=options.labels_for_unavailable,
        rows_per_run=options.max_rows_per_run,
        session_config=options.session_config,
    )
    known = rest_connections.Connections(options.connections)
    # The grace period starts when it is first asked for.
    grace_end = functools.cache(lambda: time.monotonic() + options.grace_s)
    with contextlib.ExitStack() as stack:
        stack.callback(models.close)
        _load(models, base_path, config, options)
        ipv6 = ":" in options.host
        opened = socket.create_server(
            (options.host, options.rest_port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            # "::" is all addresses, also of IPv4, as for gRPC
            dualstack_ipv6=ipv6 and socket.has_dualstack_ipv6(),
        )
        listener = rest_connections.Listener(opened, known)
        stack.callback(listener.close)
        incomplete_calls = grpc_api.IncompleteCalls(max(1, options.grpc_threads // 2))
        grpc_server, grpc_port = _start_grpc(models, options, incomplete_calls)

        def stop_grpc() -> threading.Event | None:
            remaining_s = max(0.0, grace_end() - time.monotonic())
            incomplete_calls.cancel()
            return None if grpc_server is None else grpc_server.stop(remaining_s)

        stack.callback(lambda: (stopped := stop_grpc()) and stopped.wait())
        trimmer = PeriodicCall(MemoryTrimmer().trim, _TRIM_S, "bertfam_tf.memory")
        stack.callback(trimmer.close)
        for poller in _pollers(models, config, options):
            stack.callback(poller.close)
        host, port = options.url_host, listener.getsockname()[1]
        name, version = _single_model(models)
        running = RunningServer(
            url=f"{'https' if options.ssl else 'http'}://{host}:{port}",
            port=port,
            grpc_port=grpc_port,
            grpc_target="" if grpc_port is None else f"{host}:{grpc_port}",
            model_name=name,
            version=version,
            models=models,
        )
        settings = uvicorn.Config(
            rest_api.answering_503(rest_api.app(models, options)),
            loop="asyncio",
            http=rest_connections.protocol(known, options),
            backlog=rest_connections.BACKLOG,
            timeout_keep_alive=86_400,  # ``rest_connections`` has a shorter one
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(options.grace_s),
            **options.ssl,
        )
        yield _Run(_Uvicorn(settings, lambda: started(running), stop_grpc), listener)


def _load(
    models: Models,
    base_path: str | os.PathLike[str] | None,
    config: ModelServerConfig | str | os.PathLike[str] | None,
    options: Options,
) -> None:
    if (base_path is None) == (config is None):
        raise ValueError("expected either a base path or a configuration")
    if base_path is not None:
        models.add(options.model_name, base_path)
    elif config is not None:
        models.configure(config if isinstance(config, ModelServerConfig) else read_config(config))


def _start_grpc(
    models: Models, options: Options, incomplete_calls: grpc_api.IncompleteCalls
) -> tuple[grpc.Server | None, int | None]:
    if options.grpc_port is None and options.grpc_socket_path is None:
        return None, None
    server = grpc_api.server(models, options, incomplete_calls)
    port = None
    if options.grpc_port is not None:
        address = f"{options.url_host}:{options.grpc_port}"
        port = grpc_api.listen(server, address, options.grpc_credentials)
    if options.grpc_socket_path is not None:
        path = os.path.abspath(options.grpc_socket_path)
        grpc_api.listen(server, f"unix:{path}", options.grpc_credentials)
    server.start()
    return server, port


def _pollers(
    models: Models, config: ModelServerConfig | str | os.PathLike[str] | None, options: Options
) -> Iterator[PeriodicCall]:
    if options.file_system_poll_s > 0:
        yield PeriodicCall(models.poll, options.file_system_poll_s, "bertfam_tf.versions")
    else:
        yield PeriodicCall(models.retry, 1.0, "bertfam_tf.retries")
    if options.config_poll_s > 0 and config is not None:
        if isinstance(config, ModelServerConfig):
            raise ValueError("config_poll_s needs the path of a configuration file, not a message")
        yield PeriodicCall(
            lambda: models.configure(read_config(config)),
            options.config_poll_s,
            "bertfam_tf.configuration",
        )


def _single_model(models: Models) -> tuple[str, int]:
    names = models.names()
    return (names[0], models.find(names[0])[0]) if len(names) == 1 else ("", 0)
