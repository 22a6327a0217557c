"""``python -m bertfam_serve <base_path>``: serves models over REST and gRPC."""

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the server; ``run`` takes the parsed result.

    A flag whose destination is a field of ``Options`` sets this field.
    """
    add = parser.add_argument
    add("base_path", nargs="?", help="directory with the versions 1/, 2/, …")
    add(
        *("--model-name", "--name"),
        default="model",
        help="name of the model in URLs (%(default)s)",
    )
    add(
        "--model-config-file",
        metavar="FILE",
        help="a ModelServerConfig in text format, instead of base_path, for several models, "
        "version policies and labels",
    )
    add(
        "--model-config-file-poll-wait-seconds",
        dest="config_poll_s",
        metavar="S",
        type=float,
        default=0.0,
        help="seconds between two reads of that file; 0 reads it once (%(default)s)",
    )
    add(
        "--file-system-poll-wait-seconds",
        dest="file_system_poll_s",
        metavar="S",
        type=float,
        default=1.0,
        help="seconds between two scans for new versions; 0 scans once (%(default)s)",
    )
    add("--host", default="127.0.0.1", help="address to bind (%(default)s)")
    add(
        *("--rest-port", "--port"),
        metavar="PORT",
        type=int,
        default=8501,
        help="REST port; 0 picks a free one (%(default)s)",
    )
    add(
        "--grpc-port",
        metavar="PORT",
        type=int,
        default=8500,
        help="gRPC port; 0 picks a free one, -1 disables gRPC (%(default)s)",
    )
    add(
        "--grpc-socket-path", metavar="PATH", help="a Unix socket for gRPC, in addition to the port"
    )
    add(
        "--grpc-channel-arguments",
        metavar="NAME=VALUE,…",
        default="",
        help="options of gRPC's core, such as grpc.max_connection_age_ms=2000",
    )
    add(
        "--rest-timeout-ms",
        metavar="MS",
        type=int,
        default=30_000,
        help="predictions over REST that take longer are answered with 504 (%(default)s)",
    )
    add(
        "--max-body-bytes",
        metavar="N",
        type=int,
        default=16 << 20,
        help="larger REST bodies, before or after gunzipping, are answered with 413, larger gRPC "
        "messages with RESOURCE_EXHAUSTED (%(default)s)",
    )
    add(
        "--max-rows",
        metavar="N",
        type=int,
        default=4096,
        help="requests with more rows, or more strings in one input, are refused (%(default)s)",
    )
    add(
        "--max-text-bytes",
        metavar="N",
        type=int,
        default=1 << 19,
        help="requests with more text in all strings together are refused (%(default)s)",
    )
    add(
        "--max-json-values",
        metavar="N",
        type=int,
        default=1_000_000,
        help="REST bodies with more values are refused, because parsing blocks other requests "
        "(%(default)s)",
    )
    add(
        "--max-rows-per-run",
        metavar="N",
        type=int,
        default=32,
        help="exports of bertfam run larger requests in chunks of this size, which bounds memory; "
        "0 disables it; other models run requests as a whole (%(default)s)",
    )
    add(
        "--tensorflow-intra-op-parallelism",
        metavar="N",
        type=int,
        help="threads that compute one operation; 0 means one per core (1, or what "
        "--tensorflow-session-config-file says)",
    )
    add(
        "--tensorflow-inter-op-parallelism",
        metavar="N",
        type=int,
        help="operations that run at once, over all requests; 0 means one per core (0, or what "
        "--tensorflow-session-config-file says)",
    )
    add(
        "--tensorflow-session-config-file",
        metavar="FILE",
        help="a tensorflow.ConfigProto in text format, instead of this server's defaults",
    )
    add(
        "--max-connections",
        metavar="N",
        type=int,
        default=1000,
        help="connections for REST and for gRPC each, if `ulimit -n` allows them; beyond it, REST "
        "closes the one that has waited longest for its client (%(default)s)",
    )
    add(
        "--max-grpc-calls",
        metavar="N",
        type=int,
        default=256,
        help="calls in progress or waiting; more get RESOURCE_EXHAUSTED (%(default)s)",
    )
    add(
        "--header-timeout-seconds",
        dest="header_timeout_s",
        metavar="S",
        type=float,
        default=10.0,
        help="time to send a request's headers; later ones get 408 (%(default)s)",
    )
    add(
        "--body-timeout-seconds",
        dest="body_timeout_s",
        metavar="S",
        type=float,
        default=60.0,
        help="time to send a body (later ones get 408), or to read an answer that blocks "
        "(%(default)s)",
    )
    add(
        "--grace-seconds",
        dest="grace_s",
        metavar="S",
        type=float,
        default=30.0,
        help="time for requests in progress after the signal to stop (%(default)s)",
    )
    add(
        "--allow-reload-config",
        action="store_true",
        help="allow any gRPC client to replace or unload the models (HandleReloadConfigRequest), "
        "as TensorFlow Serving does; otherwise clients need a key of --api-key-file",
    )
    add(
        "--rest-api-enable-cors-support",
        dest="cors",
        action="store_true",
        help="allow pages of any origin to read REST responses",
    )
    add(
        "--max-num-load-retries",
        dest="max_load_retries",
        metavar="N",
        type=int,
        default=5,
        help="how often loading a version is retried (%(default)s)",
    )
    add(
        "--load-retry-interval-seconds",
        dest="retry_wait_s",
        metavar="S",
        type=float,
        default=60.0,
        help="seconds between two attempts (%(default)s)",
    )
    add(
        "--allow-version-labels-for-unavailable-models",
        dest="labels_for_unavailable",
        action="store_true",
        help="allow new labels for versions that are not available yet",
    )
    add(
        "--enable-grpc-healthcheck-service",
        dest="health",
        action="store_true",
        help="serve gRPC's health service; needs grpcio-health-checking",
    )
    add(
        "--enable-serialization-as-tensor-content",
        dest="tensor_content",
        action="store_true",
        help="write tensors in gRPC responses as bytes instead of typed fields",
    )
    add("--enable-batching", action="store_true", help="batch concurrent requests")
    add(
        "--batching-parameters-file",
        metavar="FILE",
        help="BatchingParameters in text format; needs --enable-batching (Serving's defaults)",
    )
    add(
        "--monitoring-config-file",
        metavar="FILE",
        help="a MonitoringConfig in text format, with the path of Prometheus metrics",
    )
    add("--api-key-file", metavar="FILE", help="a file with the valid API keys, one per line")
    add("--tls-certificate", metavar="FILE", help="PEM; enables TLS for REST and gRPC")
    add("--tls-key", metavar="FILE", help="the certificate's private key, PEM without a password")
    add(
        "--tls-client-authority",
        metavar="FILE",
        help="PEM; clients need a certificate signed by one of these authorities",
    )
    add(
        "--ui",
        action="store_true",
        help="serve a page at /ui/ to try the models; needs the extra ui",
    )


def run(options: argparse.Namespace) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        options: the parsed flags.

    Raises:
        ServingError, OSError, ValueError: the server cannot start.
    """
    from bertfam_serve import packed_weights
    from bertfam_serve.grpc_api import parse_channel_arguments
    from bertfam_serve.options import Options
    from bertfam_serve.rest_connections import raise_file_limit
    from bertfam_serve.server import serve

    raise_file_limit(2 * options.max_connections)
    if options.base_path is not None:
        packed_weights.enable(options.base_path)
    flags = vars(options)
    arguments = {x.name: flags[x.name] for x in dataclasses.fields(Options) if x.name in flags}
    arguments |= {
        "grpc_port": None if options.grpc_port < 0 else options.grpc_port,
        "grpc_channel_arguments": parse_channel_arguments(options.grpc_channel_arguments),
        "timeout_s": options.rest_timeout_ms / 1000,
        "session_config": _session_config(options),
        "allow_reload_config": options.allow_reload_config or bool(options.api_key_file),
    }
    with contextlib.ExitStack() as stack:
        arguments |= _extensions(options, stack)
        serve(options.base_path, config=options.model_config_file, **arguments)


def _session_config(options: argparse.Namespace) -> Any:
    from tensorflow.core.protobuf import config_pb2

    from bertfam_serve import text_format

    config = config_pb2.ConfigProto()
    if options.tensorflow_session_config_file:
        text_format.read(options.tensorflow_session_config_file, config)
    else:
        # Parallel requests use cores better than parallelism within an operation: see
        # docs/guides/production.md. Threads that spin while they wait take time from others.
        config.intra_op_parallelism_threads = 1
        config.experimental.disable_thread_spinning = True
    if options.tensorflow_intra_op_parallelism is not None:
        config.intra_op_parallelism_threads = options.tensorflow_intra_op_parallelism
    if options.tensorflow_inter_op_parallelism is not None:
        config.inter_op_parallelism_threads = options.tensorflow_inter_op_parallelism
    return config


def _extensions(options: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Arguments of ``serve`` for batching, metrics, API keys, TLS and the page."""
    from starlette.middleware import Middleware

    arguments: dict[str, Any] = {"routes": []}
    wraps: list[Callable[[Any], Any]] = []
    if options.batching_parameters_file and not options.enable_batching:
        raise ValueError("--batching-parameters-file needs --enable-batching")
    if options.enable_batching:
        from bertfam_serve.batching import Batcher, BatchingParameters, read_parameters

        file = options.batching_parameters_file
        wraps.append(
            stack.enter_context(Batcher(read_parameters(file) if file else BatchingParameters()))
        )
    if options.monitoring_config_file:
        from bertfam_serve import monitoring

        path = monitoring.read_path(options.monitoring_config_file)
        if path is not None:
            metrics = monitoring.Metrics()
            wraps.append(metrics.timed)
            arguments |= {"observe": metrics.observe, "around_warm_up": metrics.time_warm_up}
            arguments["routes"].append(monitoring.route(metrics, path))
    if wraps:
        arguments["wrap"] = lambda servable: functools.reduce(
            lambda x, wrap: wrap(x), wraps, servable
        )
    if options.api_key_file:
        from bertfam_serve.rest_api import CORS_HEADERS
        from bertfam_serve.security import ApiKeyInterceptor, ApiKeyMiddleware, read_keys

        keys = read_keys(options.api_key_file)
        headers = CORS_HEADERS if options.cors else {}
        arguments["middleware"] = [Middleware(ApiKeyMiddleware, keys=keys, cors_headers=headers)]
        arguments["interceptors"] = [ApiKeyInterceptor(keys)]
    if options.tls_certificate or options.tls_key or options.tls_client_authority:
        from bertfam_serve.security import Tls

        if not (options.tls_certificate and options.tls_key):
            raise ValueError("TLS needs both --tls-certificate and --tls-key")
        tls = Tls(options.tls_certificate, options.tls_key, options.tls_client_authority)
        arguments |= {"ssl": tls.uvicorn(), "grpc_credentials": tls.grpc()}
    if options.ui:
        if options.api_key_file:
            raise ValueError(
                "--ui cannot be combined with --api-key-file: browsers do not send a key"
            )
        page = _page()
        arguments["routes"] += page.routes
        arguments["ready"] = lambda running: page.show(running.models, running.url)
    return arguments


def _page() -> Any:
    try:
        from bertfam_serve.ui import Page
    except ModuleNotFoundError as error:
        raise ValueError(f'--ui needs the extra "ui": {error}') from None
    return Page()


def main() -> int:
    """Returns the exit status: 0 after a signal, 1 if the server cannot start."""
    parser = argparse.ArgumentParser(prog="python -m bertfam_serve", description=__doc__)
    add_flags(parser)
    options = parser.parse_args()
    from bertfam_tf.export.runtime.status import ServingError

    try:
        run(options)
    except (ServingError, OSError, ValueError) as error:
        print(f"Failed to start server. Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
