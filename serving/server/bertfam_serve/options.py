"""Options of a server."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from tensorflow.core.protobuf import config_pb2

from bertfam_serve import rest_connections
from bertfam_serve.inference import Observer
from bertfam_serve.request_limits import RequestLimits
from bertfam_serve.servable_loader import AroundWarmUp, Wrap

_MAX_PORT = 65535


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a server. Each field is a keyword of ``serve`` and ``running_server``.

    Attributes:
        model_name: the name of the model under ``base_path``.
        host: the address to listen on; "0.0.0.0" for all addresses, "::" for those of IPv6 too.
        rest_port: 0 picks a free port.
        grpc_port: 0 picks a free port; None disables it.
        grpc_socket_path: a Unix socket for gRPC, in addition to the port.
        timeout_s: predictions over REST that take longer are answered with 504. Over gRPC the
            client's deadline applies.
        max_body_bytes: larger REST bodies, before or after gunzipping, are answered with 413,
            larger gRPC messages with RESOURCE_EXHAUSTED.
        max_rows: the largest number of rows, or of strings in one input, of a request; larger
            requests are refused with INVALID_ARGUMENT, as with the next two limits.
        max_text_bytes: the size of all strings of a request.
        max_json_values: the number of values in a REST body.
        max_rows_per_run: exports of bertfam run larger requests in chunks of this number of rows,
            which bounds memory; 0 disables it. Other models run requests as a whole.
        session_config: the configuration of sessions: threads and graph optimizations. The first
            session of the process creates the thread pools.
        max_connections: for REST and for gRPC each, reduced to what the limit on file descriptors
            allows. Beyond it, REST closes the connection that has waited longest for its client,
            and gRPC refuses the new one.
        max_grpc_calls: the number of gRPC calls in progress or waiting; further calls are refused
            with RESOURCE_EXHAUSTED.
        header_timeout_s: seconds in which a client must send a request's headers; over gRPC,
            complete the HTTP/2 handshake.
        body_timeout_s: seconds in which a REST client must send a body, or read an answer that
            blocks.
        grace_s: seconds for requests in progress, over REST and gRPC, after the signal to stop.
        allow_reload_config: whether any client may change the models with
            HandleReloadConfigRequest, as Serving allows; otherwise it is refused with
            PERMISSION_DENIED.
        cors: whether REST responses have CORS headers that allow pages of any origin.
        config_poll_s: seconds between two reads of the configuration file; 0 reads it once.
        file_system_poll_s: seconds between two scans for new versions; 0 scans once.
        max_load_retries: the same as in ``Models``.
        retry_wait_s: the same as in ``Models``.
        labels_for_unavailable: the same as in ``Models``.
        wrap: the same as in ``Models``; wraps each ``Servable``, for example for dynamic batching.
        around_warm_up: the same as in ``Models``.
        observe: called once per inference request: see ``inference.Observer``.
        routes: Starlette routes that are tried before the REST API, for example for metrics.
        middleware: Starlette middleware around the REST API and ``routes``, outermost first.
        interceptors: gRPC server interceptors, outermost first.
        ssl: uvicorn's settings that start with ``ssl_``, such as {"ssl_certfile": …,
            "ssl_keyfile": …}; they enable HTTPS.
        grpc_credentials: the result of ``grpc.ssl_server_credentials``; None for plain text.
        grpc_channel_arguments: options of gRPC's core, as pairs.
        grpc_threads: the number of gRPC requests that are handled concurrently.
        tensor_content: whether gRPC responses contain tensors as bytes instead of typed fields.
        health: whether to serve gRPC's health service; needs grpcio-health-checking.

    Raises:
        ValueError: a port is not from 0 to 65535.
    """

    model_name: str = "model"
    host: str = "127.0.0.1"
    rest_port: int = 8501
    grpc_port: int | None = 8500
    grpc_socket_path: str | None = None
    timeout_s: float = 30.0
    max_body_bytes: int = 16 << 20
    max_rows: int = RequestLimits.max_rows
    max_text_bytes: int = RequestLimits.max_text_bytes
    max_json_values: int = RequestLimits.max_json_values
    max_rows_per_run: int = 32
    session_config: config_pb2.ConfigProto | None = None
    max_connections: int = 1000
    max_grpc_calls: int = 256
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    grace_s: float = 30.0
    allow_reload_config: bool = False
    cors: bool = False
    config_poll_s: float = 0.0
    file_system_poll_s: float = 1.0
    max_load_retries: int = 5
    retry_wait_s: float = 60.0
    labels_for_unavailable: bool = False
    wrap: Wrap | None = None
    around_warm_up: AroundWarmUp | None = None
    observe: Observer | None = None
    routes: Sequence[BaseRoute] = ()
    middleware: Sequence[Middleware] = ()
    interceptors: Sequence[grpc.ServerInterceptor] = ()
    ssl: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grpc_credentials: grpc.ServerCredentials | None = None
    grpc_channel_arguments: Sequence[tuple[str, Any]] = ()
    grpc_threads: int = 64
    tensor_content: bool = False
    health: bool = False

    def __post_init__(self) -> None:
        for name in ("rest_port", "grpc_port"):
            port = getattr(self, name)
            # gRPC would take the remainder of a larger number.
            if port is not None and not 0 <= port <= _MAX_PORT:
                raise ValueError(f"{name} must be from 0 to {_MAX_PORT}, got {port}")

    @property
    def url_host(self) -> str:
        """The host as in URLs: IPv6 addresses have brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def limits(self) -> RequestLimits:
        """The limits of one request."""
        return RequestLimits(self.max_rows, self.max_text_bytes, self.max_json_values)

    @property
    def connections(self) -> int:
        """The number of connections that each API may have in this process."""
        has_grpc = self.grpc_port is not None or self.grpc_socket_path is not None
        return rest_connections.connections_per_port(self.max_connections, 1 + has_grpc)
