"""Runs both APIs: in the foreground with `serve`, in a thread with `running_server`."""

import contextlib
import dataclasses
import functools
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import uvicorn
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from bertfam_tf.serve import connections as rest_connections
from bertfam_tf.serve import grpc as grpc_api
from bertfam_tf.serve import inference, pieces, rest
from bertfam_tf.serve.config import read_config
from bertfam_tf.serve.limits import Limits
from bertfam_tf.serve.loader import AroundWarmUp, Wrap
from bertfam_tf.serve.memory import Memory
from bertfam_tf.serve.models import Models
from bertfam_tf.serve.polling import Periodic

GRACE_S = 30.0
_TRIM_S = 2.0


@dataclasses.dataclass(frozen=True)
class Options:
    """What a server does beside the contract, and how; each is a keyword of `serve` too.

    Attributes:
        model_name: the name of the model under `base_path`.
        host: the address to listen on; "0.0.0.0" is every one.
        rest_port: 0 picks a free one.
        grpc_port: 0 picks a free one; None opens none.
        grpc_socket_path: a Unix socket on which gRPC is spoken too.
        timeout_s: a prediction over REST that takes longer is answered 504. Over gRPC the client's
            deadline counts.
        max_body_bytes: a longer REST body, as sent or gunzipped, is answered 413, a longer gRPC
            message RESOURCE_EXHAUSTED.
        max_rows: rows, and strings of one input, of a request; more are INVALID_ARGUMENT.
        max_text_bytes: bytes of all strings of a request, as `max_rows`.
        max_json_values: values in the JSON of a REST body, as `max_rows`.
        max_rows_per_run: exports of bertfam run a request of more rows in pieces of so many, so
            that memory has a bound; 0 never does. Other models run requests whole.
        max_connections: of REST, and of gRPC, each; fewer where the system gives the process too
            few file descriptors. Beyond it REST closes the connection that has waited longest for
            its client, and gRPC the new one.
        max_grpc_calls: gRPC calls that are handled or wait; more are RESOURCE_EXHAUSTED.
        header_timeout_s: seconds that a connection has to send a request's headers; over gRPC,
            to begin HTTP/2.
        body_timeout_s: seconds that a REST client has to send a body, and to read on when an
            answer is stuck.
        grace_s: seconds that requests in progress have, over REST and gRPC, once the server is
            told to stop.
        allow_reload_config: whether HandleReloadConfigRequest changes the models, for whoever may
            call; PERMISSION_DENIED if not. Serving always allows it.
        cors: whether REST answers let pages of any origin read them.
        config_poll_s: seconds between two looks at the file of the configuration; 0 reads it once.
        file_system_poll_s: seconds between two looks for new versions; 0 looks once.
        max_load_retries: as in `Models`.
        retry_wait_s: as in `Models`.
        labels_for_unavailable: as in `Models`.
        wrap: as in `Models`: makes of each `Servable` what requests run on, such as dynamic
            batching.
        around_warm_up: as in `Models`.
        observe: called once per inference request: see `inference.Observer`.
        routes: Starlette routes tried before the REST API, such as a page of metrics.
        middleware: Starlette middleware around the REST API and `routes`, first is outermost.
        interceptors: gRPC server interceptors, first is outermost.
        ssl: uvicorn's settings that begin with `ssl_`, such as {"ssl_certfile": …, "ssl_keyfile":
            …}; REST is https then.
        grpc_credentials: of `grpc.ssl_server_credentials`; none is plain text.
        grpc_channel_arguments: options of gRPC's core, as pairs.
        grpc_threads: how many gRPC requests are handled at once.
        tensor_content: whether gRPC answers hold tensors as bytes, not in typed fields.
        health: whether gRPC's health service answers; needs grpcio-health-checking.
    """

    model_name: str = "model"
    host: str = "127.0.0.1"
    rest_port: int = 8501
    grpc_port: int | None = 8500
    grpc_socket_path: str | None = None
    timeout_s: float = rest.TIMEOUT_S
    max_body_bytes: int = rest.MAX_BODY_BYTES
    max_rows: int = Limits.max_rows
    max_text_bytes: int = Limits.max_text_bytes
    max_json_values: int = Limits.max_json_values
    max_rows_per_run: int = pieces.MAX_ROWS_PER_RUN
    max_connections: int = rest_connections.MAX_CONNECTIONS
    max_grpc_calls: int = grpc_api.MAX_CALLS
    header_timeout_s: float = rest_connections.HEADER_TIMEOUT_S
    body_timeout_s: float = rest_connections.BODY_TIMEOUT_S
    grace_s: float = GRACE_S
    allow_reload_config: bool = False
    cors: bool = False
    config_poll_s: float = 0.0
    file_system_poll_s: float = 1.0
    max_load_retries: int = 5
    retry_wait_s: float = 60.0
    labels_for_unavailable: bool = False
    wrap: Wrap | None = None
    around_warm_up: AroundWarmUp | None = None
    observe: inference.Observer | None = None
    routes: Sequence[BaseRoute] = ()
    middleware: Sequence[Middleware] = ()
    interceptors: Sequence[grpc.ServerInterceptor] = ()
    ssl: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grpc_credentials: grpc.ServerCredentials | None = None
    grpc_channel_arguments: Sequence[tuple[str, Any]] = ()
    grpc_threads: int = grpc_api.THREADS
    tensor_content: bool = False
    health: bool = False

    @property
    def limits(self) -> Limits:
        """Of one request."""
        return Limits(self.max_rows, self.max_text_bytes, self.max_json_values)

    @property
    def connections(self) -> int:
        """How many each API may have in this process."""
        has_grpc = self.grpc_port is not None or self.grpc_socket_path is not None
        return rest_connections.affordable(self.max_connections, 1 + has_grpc)


class _Grace:
    """The time that requests have to end, which begins when it is first asked for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None

    def left(self) -> float:
        """Seconds."""
        now = time.monotonic()
        if self._end is None:
            self._end = now + self._seconds
        return max(0.0, self._end - now)


class RunningServer(NamedTuple):
    """A server that accepts requests.

    Attributes:
        url: without a path, e.g. "http://127.0.0.1:8501".
        port: the port it listens on for REST.
        grpc_port: the port it listens on for gRPC; None where there is none.
        grpc_target: for `grpc.insecure_channel`: "127.0.0.1:8500"; empty where there is none.
        model_name: the model's name; empty if there is none or more than one.
        version: the model's version; 0 if there is none or more than one.
        models: what is served; changes to it show at once.
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
        base_path: a directory with one child per version: `1/`, `2/`, …; the latest is served,
            and so is each newer one from when it has appeared and is loaded.
        config: the models instead: a ModelServerConfig or the path of one as text, which is
            looked at again every `config_poll_s`.
        ready: called once requests are accepted, after a line that says so is printed.
        **options: fields of `Options`.

    Raises:
        ServingError: when a model does not load; as in Serving, no port opens then. (Serving
            tries some more times before.)
        OSError: when a port is taken.
        ValueError: without a base path or config, or with both.
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
    """As `serve`, in a background thread, for as long as the context lasts.

    Ports are free ones unless they are given.
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

    given = Options(**{"rest_port": 0, "grpc_port": 0, **options})
    with _built(base_path, config, given, started) as built:
        thread = threading.Thread(target=run, name="bertfam_tf.serve", daemon=True)
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
    """Calls back once it accepts requests, and returns from a signal instead of raising it anew.

    When it stops, gRPC stops at the same time.
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
        # Let go at once: this object is part of a cycle, and gRPC's threads end with its server.
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
    """A server about to run: models are loaded, ports are open, gRPC answers already."""
    models = Models(
        wrap=options.wrap,
        around_warm_up=options.around_warm_up,
        max_load_retries=options.max_load_retries,
        retry_wait_s=options.retry_wait_s,
        labels_for_unavailable=options.labels_for_unavailable,
        rows_per_run=options.max_rows_per_run,
    )
    known = rest_connections.Connections(options.connections)
    grace = _Grace(options.grace_s)
    with contextlib.ExitStack() as stack:
        stack.callback(models.close)
        _load(models, base_path, config, options)
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        opened = socket.create_server((options.host, options.rest_port), family=family)
        listener = rest_connections.Listener(opened, known)
        stack.callback(listener.close)
        half_sent = grpc_api.HalfSent(max(1, options.grpc_threads // 2))
        grpc_server, grpc_port = _start_grpc(models, options, half_sent)

        def stop_grpc() -> threading.Event | None:
            left = grace.left()
            half_sent.cancel()
            return None if grpc_server is None else grpc_server.stop(left)

        stack.callback(lambda: (stopped := stop_grpc()) and stopped.wait())
        trimmer = Periodic(Memory().trim, _TRIM_S, "bertfam_tf.memory")
        stack.callback(trimmer.close)
        for poller in _pollers(models, config, options):
            stack.callback(poller.close)
        host = f"[{options.host}]" if ":" in options.host else options.host
        port = listener.getsockname()[1]
        name, version = _only(models)
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
            rest.app(
                models,
                timeout_s=options.timeout_s,
                max_body_bytes=options.max_body_bytes,
                limits=options.limits,
                observe=options.observe,
                cors=options.cors,
                routes=options.routes,
                middleware=options.middleware,
            ),
            loop="asyncio",
            http=rest_connections.protocol(
                known,
                rest_connections.Patience(options.header_timeout_s, options.body_timeout_s),
            ),
            backlog=rest_connections.BACKLOG,
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
        raise ValueError("expected either a base path or a configuration of models")
    if base_path is not None:
        models.add(options.model_name, base_path)
    elif config is not None:
        models.configure(config if isinstance(config, ModelServerConfig) else read_config(config))


def _start_grpc(
    models: Models, options: Options, half_sent: grpc_api.HalfSent
) -> tuple[grpc.Server | None, int | None]:
    if options.grpc_port is None and options.grpc_socket_path is None:
        return None, None
    server = grpc_api.server(
        models,
        limits=options.limits,
        max_message_bytes=options.max_body_bytes,
        max_calls=options.max_grpc_calls,
        max_connections=options.connections,
        handshake_timeout_s=options.header_timeout_s,
        allow_reload_config=options.allow_reload_config,
        observe=options.observe,
        interceptors=[*options.interceptors, half_sent],
        channel_arguments=options.grpc_channel_arguments,
        as_content=options.tensor_content,
        health=options.health,
        threads=options.grpc_threads,
    )
    port = None
    if options.grpc_port is not None:
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{options.grpc_port}"
        port = grpc_api.listen(server, address, options.grpc_credentials)
    if options.grpc_socket_path is not None:
        path = os.path.abspath(options.grpc_socket_path)
        grpc_api.listen(server, f"unix:{path}", options.grpc_credentials)
    server.start()
    return server, port


def _pollers(
    models: Models, config: ModelServerConfig | str | os.PathLike[str] | None, options: Options
) -> Iterator[Periodic]:
    if options.file_system_poll_s > 0:
        yield Periodic(models.poll, options.file_system_poll_s, "bertfam_tf.versions")
    else:
        yield Periodic(models.retry, 1.0, "bertfam_tf.retries")
    if options.config_poll_s > 0 and config is not None:
        if isinstance(config, ModelServerConfig):
            raise ValueError("config_poll_s needs the path of a configuration, not a message")
        reload = functools.partial(_reload, models, config)
        yield Periodic(reload, options.config_poll_s, "bertfam_tf.configuration")


def _reload(models: Models, path: str | os.PathLike[str]) -> None:
    models.configure(read_config(path))


def _only(models: Models) -> tuple[str, int]:
    names = models.names()
    return (names[0], models.find(names[0])[0]) if len(names) == 1 else ("", 0)
