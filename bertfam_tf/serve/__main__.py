"""`python -m bertfam_tf.serve <base_path>`: serves models over REST and gRPC until stopped."""

import argparse
import os
import sys


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the server; `run` takes what they parse to."""
    add = parser.add_argument
    add("base_path", nargs="?", help="directory that holds the versions: 1/, 2/, …")
    add(
        *("--model-name", "--name"),
        default="model",
        help="of the model under base_path, in URLs (%(default)s)",
    )
    add(
        "--model-config-file",
        metavar="FILE",
        help="a ModelServerConfig as text, instead of base_path: several models, version "
        "policies, labels",
    )
    add(
        "--model-config-file-poll-wait-seconds",
        metavar="S",
        type=float,
        default=0.0,
        help="between two looks at that file; 0 reads it once (%(default)s)",
    )
    add(
        "--file-system-poll-wait-seconds",
        metavar="S",
        type=float,
        default=1.0,
        help="between two looks for new versions; 0 looks once (%(default)s)",
    )
    add("--host", default="127.0.0.1", help="address to bind (%(default)s)")
    add(
        *("--rest-port", "--port"),
        metavar="PORT",
        type=int,
        default=8501,
        help="for REST; 0 picks a free one (%(default)s)",
    )
    add(
        "--grpc-port",
        metavar="PORT",
        type=int,
        default=8500,
        help="for gRPC; 0 picks a free one, -1 opens none (%(default)s)",
    )
    add("--grpc-socket-path", metavar="PATH", help="a Unix socket for gRPC beside the port")
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
        help="a prediction over REST that takes longer is answered 504 (%(default)s)",
    )
    add(
        "--rest-api-enable-cors-support",
        action="store_true",
        help="let pages of any origin read what REST answers",
    )
    add(
        "--max-num-load-retries",
        metavar="N",
        type=int,
        default=5,
        help="how often a version that does not load is tried again (%(default)s)",
    )
    add(
        "--load-retry-interval-seconds",
        metavar="S",
        type=float,
        default=60.0,
        help="between two tries (%(default)s)",
    )
    add(
        "--allow-version-labels-for-unavailable-models",
        action="store_true",
        help="new labels may be given to versions that are not loaded yet",
    )
    add(
        "--enable-grpc-healthcheck-service",
        action="store_true",
        help="answer gRPC's health checks; needs grpcio-health-checking",
    )
    add(
        "--enable-serialization-as-tensor-content",
        action="store_true",
        help="write tensors of gRPC answers as bytes, not in the field of their type",
    )


def run(options: argparse.Namespace) -> None:
    """Serves until a signal comes.

    Raises:
        ServingError, OSError, ValueError: when the server cannot start.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # warnings, not the greeting

    from bertfam_tf.serve.grpc import parse_channel_arguments
    from bertfam_tf.serve.server import serve

    serve(
        options.base_path,
        config=options.model_config_file,
        model_name=options.model_name,
        host=options.host,
        rest_port=options.rest_port,
        grpc_port=None if options.grpc_port < 0 else options.grpc_port,
        grpc_socket_path=options.grpc_socket_path,
        grpc_channel_arguments=parse_channel_arguments(options.grpc_channel_arguments),
        timeout_s=options.rest_timeout_ms / 1000,
        cors=options.rest_api_enable_cors_support,
        config_poll_s=options.model_config_file_poll_wait_seconds,
        file_system_poll_s=options.file_system_poll_wait_seconds,
        max_load_retries=options.max_num_load_retries,
        retry_wait_s=options.load_retry_interval_seconds,
        labels_for_unavailable=options.allow_version_labels_for_unavailable_models,
        health=options.enable_grpc_healthcheck_service,
        tensor_content=options.enable_serialization_as_tensor_content,
    )


def main() -> int:
    """Returns the exit status: 0 after a signal, 1 when the server could not start."""
    parser = argparse.ArgumentParser(prog="python -m bertfam_tf.serve", description=__doc__)
    add_flags(parser)
    options = parser.parse_args()
    from bertfam_tf.serve.status import ServingError

    try:
        run(options)
    except (ServingError, OSError, ValueError) as error:
        print(f"Failed to start server. Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
