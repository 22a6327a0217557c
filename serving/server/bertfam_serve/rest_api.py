"""TensorFlow Serving's REST API as a Starlette app: routes, status codes and bodies."""

import asyncio
import functools
import gzip
import io
import logging
import math
import re
import time
import urllib.parse
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import numpy as np
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tensorflow_serving.apis import classification_pb2, model_pb2, regression_pb2

from bertfam_serve import inference, json_examples, json_tensor, json_text
from bertfam_serve.batching import PendingRequest
from bertfam_serve.http_status import HTTP_STATUS, shortened
from bertfam_serve.model_server_config import MAX_VERSION
from bertfam_serve.models import Models
from bertfam_serve.options import Options
from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE, ServableLike
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

logger = logging.getLogger(__name__)

CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    # The latter two may have an API key.
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-API-Key",
}

_API = re.compile(r"/v1/.*", re.IGNORECASE)
_VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_INFERENCE = re.compile(
    rf"/v1/models/(?P<name>[^/:]+){_VERSION}:(?P<verb>classify|regress|predict)",
    re.IGNORECASE | re.ASCII,
)
_INSPECTION = re.compile(
    rf"/v1/models(?:/(?P<name>[^/:]+))?{_VERSION}(?:/(?P<verb>metadata))?",
    re.IGNORECASE | re.ASCII,
)
# Bodies up to this number of bytes, and answers up to this number of array elements, are decoded
# and encoded in the event loop, which takes less time than handing them to a thread.
_SMALL_BODY, _SMALL_ANSWER = 4096, 1024
# How long a run may continue after its deadline until the client gets an error anyway.
_GRACE_S = 5.0
_STOPPED = "The server is shutting down; the prediction was cancelled. Send the request again."


class _Target(NamedTuple):
    """A parsed path: the model and the verb."""

    name: str
    version: int | None
    label: str | None
    verb: str

    @property
    def spec(self) -> model_pb2.ModelSpec:
        spec = model_pb2.ModelSpec(name=self.name)
        if self.version is not None:
            spec.version.value = self.version
        elif self.label is not None:
            spec.version_label = self.label
        return spec


class _TooLarge(ServingError):
    """A body over the limit, answered with the HTTP status 413, which no gRPC code maps to."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            Code.INVALID_ARGUMENT,
            f"Request body is larger than {limit} bytes, before or after gunzipping. Send several "
            "requests, or start the server with a higher --max-body-bytes.",
        )


def app(models: Models, options: Options) -> Starlette:
    """Creates the app of the REST API.

    Serving does not limit bodies, and limits gunzipped bodies to 100 MiB.
    """
    # One route for the whole API: Serving matches the raw path including the query string.
    return Starlette(
        routes=[*options.routes, Route("/{path:path}", endpoint=_Api(models, options))],
        middleware=list(options.middleware),
    )


def answering_503(app: ASGIApp) -> ASGIApp:
    """Wraps an app so that requests that are cancelled by a shutdown are answered with 503.

    uvicorn cancels what is still running after the grace period, and logs a traceback for each
    request that ends with an exception.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await app(scope, receive, watched)
        except asyncio.CancelledError:
            if started or scope["type"] != "http":
                return
            response = _json(json_text.encode_error(_STOPPED), HTTP_STATUS[Code.UNAVAILABLE])
            response.headers["connection"] = "close"
            await response(scope, receive, send)

    return answer


class _Api:
    def __init__(self, models: Models, options: Options) -> None:
        self._models = models
        self._options = options
        self._limits = options.limits
        self._handlers: dict[str, Callable[[_Target, bytes], bytes]] = {
            "predict": self._predict,
            "classify": self._classify,
            "regress": self._regress,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        if self._options.cors:
            response.headers.update(CORS_HEADERS)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("utf-8", "replace")
        if request.scope["query_string"]:
            path += "?" + request.scope["query_string"].decode("utf-8", "replace")
        if not _API.fullmatch(path):
            return HTMLResponse("<html><body><h1>Not Found</h1></body></html>", 404)
        try:
            return _json(await self._dispatch(request, path))
        except ServingError as error:
            status = 413 if isinstance(error, _TooLarge) else HTTP_STATUS[error.code]
            return _json(json_text.encode_error(shortened(error.message)), status)
        except ClientDisconnect:
            return _json(b"", HTTP_STATUS[Code.CANCELLED])  # the client has gone
        except Exception:
            logger.exception("%s %s failed", request.method, path)
            return _json(json_text.encode_error("Internal error"), 500)

    async def _dispatch(self, request: Request, path: str) -> bytes:
        if request.method == "OPTIONS":
            if re.search("https?://", request.headers.get("origin", "")):
                return b""
            raise ServingError(
                Code.FAILED_PRECONDITION, "Origin header is missing in CORS preflight"
            )
        # Read even if it is not used: a client that is still sending may miss the answer.
        body = await self._body(request)
        gzipped = "gzip" in request.headers.get("content-encoding", "").lower()
        if request.method == "POST":
            target = _target(_INFERENCE.fullmatch(path))
            # Serving matches the path ignoring case, but compares the verb exactly.
            if target and target.verb in self._handlers:
                with inference.observed(self._options.observe, target.name, target.verb, "REST"):
                    if target.verb == "predict" and not gzipped and len(body) <= _SMALL_BODY:
                        return await self._predict_small(target, body)
                    return await self._with_timeout(
                        functools.partial(self._infer, target, body, gzipped)
                    )
        elif request.method == "GET":
            target = _target(_INSPECTION.fullmatch(path))
            if target and not target.name:
                raise invalid("Missing model name in request.")
            if target and target.verb == "metadata":
                return self._metadata(target)
            if target:
                return self._status(target)
        raise invalid(f"Malformed request: {request.method} {path}")

    async def _body(self, request: Request) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= self._options.max_body_bytes:
                chunks.append(chunk)
            else:
                chunks.clear()
        if size > self._options.max_body_bytes:
            raise _TooLarge(self._options.max_body_bytes)
        return b"".join(chunks)

    async def _with_timeout(self, work: functools.partial[bytes]) -> bytes:
        # The session enforces the deadline. This covers operations that ignore cancellation and
        # requests that are still waiting for a thread.
        try:
            with anyio.fail_after(self._options.timeout_s + _GRACE_S):
                result = await anyio.to_thread.run_sync(
                    _result_or_error, work, abandon_on_cancel=True
                )
        except TimeoutError:
            raise ServingError(
                Code.DEADLINE_EXCEEDED, "Timed out waiting for the prediction"
            ) from None
        if isinstance(result, ServingError):
            try:
                raise result
            finally:
                del result  # the traceback refers to this frame
        return result

    @property
    def _timeout_ms(self) -> int:
        return max(1, int(self._options.timeout_s * 1000))

    def _infer(self, target: _Target, body: bytes, gzipped: bool) -> bytes:
        """Gunzips, decodes, runs and encodes, in a worker thread."""
        if gzipped:
            body = _gunzip(body, self._options.max_body_bytes)
        return self._handlers[target.verb](target, body)

    async def _predict_small(self, target: _Target, body: bytes) -> bytes:
        """As ``_predict``; only requests that are not in a batching queue occupy a thread."""
        request, servable = self._decode(target, body)
        submit: Callable[..., PendingRequest | None] | None = getattr(servable, "submit", None)
        pending = submit and submit(request.signature, request.inputs, timeout_ms=self._timeout_ms)
        if pending is None:
            work = functools.partial(self._run_and_encode, servable, request)
            return await self._with_timeout(work)
        outputs = await _outputs(pending)
        encode = functools.partial(json_tensor.encode_predict, outputs, request.row)
        if sum(array.size for array in outputs.values()) <= _SMALL_ANSWER:
            return encode()
        return await self._with_timeout(encode)

    def _predict(self, target: _Target, body: bytes) -> bytes:
        request, servable = self._decode(target, body)
        return self._run_and_encode(servable, request)

    def _run_and_encode(self, servable: ServableLike, request: json_tensor.PredictRequest) -> bytes:
        outputs = servable.run(request.signature, request.inputs, timeout_ms=self._timeout_ms)
        return json_tensor.encode_predict(outputs, request.row)

    def _decode(
        self, target: _Target, body: bytes
    ) -> tuple[json_tensor.PredictRequest, ServableLike]:
        servables: list[ServableLike] = []

        def inputs_of(signature: str) -> Mapping[str, Any]:
            # Looked up once, after the body is parsed: the version may be unloaded meanwhile.
            _, servable = self._models.find(target.name, target.version, target.label)
            servables.append(servable)
            signature = signature or DEFAULT_SIGNATURE
            if signature not in servable.signatures:
                raise invalid(f'Serving signature name: "{signature}" not found in signature def')
            return servable.signatures[signature].inputs

        return json_tensor.decode_predict(body, inputs_of, self._limits), servables[0]

    def _classify(self, target: _Target, body: bytes) -> bytes:
        request = classification_pb2.ClassificationRequest(model_spec=target.spec)
        json_examples.decode_examples(body, request, self._limits)
        answer = self._run(request)
        return json_examples.encode_classes(answer.result)

    def _regress(self, target: _Target, body: bytes) -> bytes:
        request = regression_pb2.RegressionRequest(model_spec=target.spec)
        json_examples.decode_examples(body, request, self._limits)
        answer = self._run(request)
        return json_examples.encode_values(answer.result)

    def _run(self, request: Any) -> Any:
        return inference.answer(
            self._models, request, limits=self._limits, timeout_ms=self._timeout_ms
        )

    def _status(self, target: _Target) -> bytes:
        # As in Serving, a label in the path is ignored and all versions are reported.
        return _message_json(self._models.status(target.name, target.version)).encode()

    def _metadata(self, target: _Target) -> bytes:
        version, servable = self._models.find(target.name, target.version, target.label)
        spec = model_pb2.ModelSpec(name=target.name)
        spec.version.value = version
        signatures = inference.signature_map(servable)
        return (
            f'{{\n"model_spec":{_message_json(spec)},\n'
            f'"metadata": {{"signature_def": {_message_json(signatures)}}}\n}}\n'
        ).encode()


def _target(match: re.Match[str] | None) -> _Target | None:
    if match is None:
        return None
    digits = match["version"]
    # Python refuses to convert thousands of digits, and a hundred are already out of range.
    if digits and (len(digits) > 100 or int(digits) > MAX_VERSION):
        raise invalid(f"Failed to convert version: {digits} to numeric.")
    version = int(digits) if digits else None
    label = match["label"] and urllib.parse.unquote(match["label"])
    name = urllib.parse.unquote(match["name"] or "")
    return _Target(name, version, label, match["verb"] or "")


def _result_or_error(work: functools.partial[bytes]) -> bytes | ServingError:
    """Calls ``work`` and returns its result or its error.

    An exception raised through anyio is part of a reference cycle. Its traceback would keep the
    request in memory until the next garbage collection.
    """
    try:
        return work()
    except ServingError as error:
        return error.with_traceback(None)


async def _outputs(pending: PendingRequest) -> dict[str, np.ndarray]:
    """Waits for the outputs of a request in a queue."""
    remaining_s = pending.deadline - time.monotonic()
    waiting = asyncio.wrap_future(pending.future)
    try:
        await asyncio.wait([waiting], timeout=None if remaining_s == math.inf else remaining_s)
        if not waiting.done():
            raise pending.timeout_error()
    finally:
        waiting.cancel()  # nothing, if it is done
    error = waiting.exception()
    if isinstance(error, ServingError):
        # A new exception, because the other requests of the batch share this one.
        raise ServingError(error.code, error.message)
    return waiting.result()


def _gunzip(body: bytes, limit: int) -> bytes:
    try:
        # To gzip, no data is an empty file.
        content = gzip.GzipFile(fileobj=io.BytesIO(body or b"\0")).read(limit + 1)
    except (OSError, EOFError, zlib.error):
        raise invalid("Failed to uncompress the gzipped body") from None
    if len(content) > limit:
        raise _TooLarge(limit)
    return content


def _message_json(message: Any) -> str:
    text: str = json_format.MessageToJson(
        message,
        indent=1,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return text + "\n"


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")
