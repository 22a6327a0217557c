"""The gRPC API: PredictionService, ModelService and, optionally, the health service."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NoReturn

import grpc
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from bertfam_serve import inference
from bertfam_serve.http_status import shortened
from bertfam_serve.models import Models
from bertfam_serve.options import Options
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

logger = logging.getLogger(__name__)

# Idle connections are closed after this time; silent ones are sent keepalive pings.
_IDLE_MS = 300_000
_PING_MS = 60_000
_NO_RELOAD = (
    "HandleReloadConfigRequest is disabled: any client could replace or unload the models. Start "
    "the server with --allow-reload-config, or with --api-key-file so that clients need a key."
)
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# TensorFlow stores timeouts as int64 milliseconds; longer ones (35 years) mean no limit.
_MAX_TIMEOUT_MS = 2**40


class IncompleteCalls(grpc.ServerInterceptor):
    """Limits the number of calls whose message has not arrived; each of them occupies a thread.

    A client may open a call and send nothing. Beyond the limit, the call that has waited longest
    is cancelled.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._lock = threading.Lock()
        self._waiting: dict[int, grpc.ServicerContext] = {}  # oldest first

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> Any:
        """Returns the handler of an RPC; grpc calls it for every RPC."""
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler

        # As a stream, a call has a context, and can be cancelled, before its message arrives.
        def answer(messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
            message = self._first(messages, context)
            if message is None:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Expected one request message")
            return handler.unary_unary(message, context)

        return grpc.stream_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )

    def cancel(self, left: int = 0) -> None:
        """Cancels the calls that have waited longest until ``left`` remain."""
        with self._lock:
            surplus = list(self._waiting.items())[: max(0, len(self._waiting) - left)]
            for key, _ in surplus:
                del self._waiting[key]
        for _, context in surplus:
            context.cancel()

    def _first(self, messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
        with self._lock:
            self._waiting[id(context)] = context
        self.cancel(self._maximum)
        try:
            return next(messages, None)
        finally:
            with self._lock:
                self._waiting.pop(id(context), None)


def server(models: Models, options: Options, incomplete_calls: IncompleteCalls) -> grpc.Server:
    """Creates the gRPC server; the caller adds ports and starts it.

    A run is cancelled at its client's deadline.

    Args:
        models: the models to serve; ModelService can change them.
        options: the server's options.
        incomplete_calls: limits the calls that wait for their message.

    Raises:
        ValueError: ``health`` is set and grpcio-health-checking is not installed.
    """
    grpc_server = grpc.server(
        futures.ThreadPoolExecutor(options.grpc_threads, "bertfam_tf.grpc"),
        interceptors=[*options.interceptors, incomplete_calls],
        maximum_concurrent_rpcs=options.max_grpc_calls,
        options=[
            ("grpc.max_receive_message_length", options.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.server_handshake_timeout_ms", int(options.header_timeout_s * 1000)),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
            ("grpc.keepalive_time_ms", _PING_MS),
            ("grpc.so_reuseport", 0),  # makes a port that is in use an error
            ("grpc.max_allowed_incoming_connections", options.connections),
            *options.grpc_channel_arguments,
        ],
    )
    prediction = _PredictionService(models, options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(prediction, grpc_server)
    service = _ModelService(models, options.allow_reload_config)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, grpc_server)
    if options.health:
        _add_health(grpc_server)
    return grpc_server


def listen(
    grpc_server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Opens a port.

    Args:
        grpc_server: the server.
        address: "host:port", with port 0 for a free one, or "unix:/path".
        credentials: for TLS; None for plain text.

    Returns:
        The port.

    Raises:
        OSError: it cannot be opened, for example because the port is in use.
    """
    try:
        if credentials is None:
            port: int = grpc_server.add_insecure_port(address)
        else:
            port = grpc_server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from None
    return port


def parse_channel_arguments(text: str) -> list[tuple[str, int | str]]:
    """Parses "name=value,name=value"; integer values become int.

    Raises:
        ValueError: a part has no "=".
    """
    arguments: list[tuple[str, int | str]] = []
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"channel argument {part!r}: expected name=value")
        is_integer = value.removeprefix("-").isdecimal()
        arguments.append((name, int(value) if is_integer else value))
    return arguments


def _add_health(grpc_server: grpc.Server) -> None:
    try:
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    except ImportError:
        raise ValueError("the health service needs the package grpcio-health-checking") from None
    servicer = health.HealthServicer()
    for service in ("", "ModelService", "PredictionService"):
        servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, grpc_server)


def _abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    if isinstance(error, ServingError):
        code, text = error.code, error.message
    else:
        logger.error("A gRPC request failed", exc_info=error)
        code, text = Code.INTERNAL, "Internal error"
    context.abort(_CODES[int(code)], shortened(text))
    raise AssertionError("abort raises")


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, models: Models, options: Options) -> None:
        self._models = models
        self._options = options

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._answer(request, context, "Predict")

    def Classify(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._answer(request, context, "Classify")

    def Regress(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._answer(request, context, "Regress")

    def MultiInference(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._answer(request, context, "MultiInference")

    def GetModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return _metadata(self._models, request)
        except Exception as error:
            _abort(context, error)

    def _answer(self, request: Any, context: grpc.ServicerContext, api: str) -> Any:
        name = inference.model_name(request)
        remaining_s = context.time_remaining()
        timeout_ms = (
            0 if remaining_s is None else max(1, min(int(remaining_s * 1000), _MAX_TIMEOUT_MS))
        )
        try:
            with inference.observed(self._options.observe, name, api, "GRPC"):
                return inference.answer(
                    self._models,
                    request,
                    limits=self._options.limits,
                    timeout_ms=timeout_ms,
                    as_content=self._options.tensor_content,
                )
        except Exception as error:
            _abort(context, error)


def _metadata(models: Models, request: Any) -> Any:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    if not request.metadata_field:
        raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != "signature_def":
            raise invalid(f"Metadata field {field} is not supported")
    version, servable = models.find_spec(request.model_spec)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = version
    response.metadata["signature_def"].Pack(inference.signature_map(servable))
    return response


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, models: Models, allow_reload_config: bool) -> None:
        self._models = models
        self._allow_reload_config = allow_reload_config

    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return _status(self._models, request)
        except Exception as error:
            _abort(context, error)

    def HandleReloadConfigRequest(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            if not self._allow_reload_config:
                raise ServingError(Code.PERMISSION_DENIED, _NO_RELOAD)
            if request.config.WhichOneof("config") != "model_config_list":
                raise invalid(
                    "ServerModelConfig type not supported by HandleReloadConfigRequest. "
                    "Only ModelConfigList is currently supported"
                )
            self._models.configure(request.config)
        except Exception as error:
            _abort(context, error)
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        for name in request.metric_names:
            response.metric.add(name=name, int64_value_increase=0)
        return response


def _status(models: Models, request: Any) -> get_model_status_pb2.GetModelStatusResponse:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    spec = request.model_spec
    return models.status(spec.name, spec.version.value if spec.HasField("version") else None)
