"""API keys and TLS. Both are disabled by default."""

import dataclasses
import hashlib
import hmac
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bertfam_serve.http_status import HTTP_STATUS
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

_MIN_CHARACTERS = 16
_REFUSAL = "A valid API key is required, as 'x-api-key: KEY' or 'authorization: Bearer KEY'"
# Health probes cannot send a key; the answer reveals only that the port is open.
_HEALTH = "/grpc.health.v1.Health/"


class ApiKeys:
    """The valid API keys, compared in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Raises ServingError, INVALID_ARGUMENT, if there are no keys."""
        # Digests have equal lengths and do not reveal the keys.
        self._digests = [_digest(key.encode()) for key in keys]
        if not self._digests:
            raise invalid("There are no API keys: every request would be refused")

    def valid(self, key: bytes) -> bool:
        """Returns whether the key is one of the valid keys."""
        digest = _digest(key)
        matches = False
        for known in self._digests:
            matches |= hmac.compare_digest(known, digest)
        return matches

    def valid_headers(self, get: Callable[[str], str | None]) -> bool:
        """Returns whether a request has a valid key.

        Args:
            get: takes the name of a header in lower case.
        """
        scheme, _, token = (get("authorization") or "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else None
        # Checks both headers: a proxy may add one of its own.
        sent = [key for key in (get("x-api-key"), bearer) if key]
        return any([self.valid(key.encode("utf-8", "surrogateescape")) for key in sent])  # noqa: C419


def read_keys(path: str | os.PathLike[str]) -> ApiKeys:
    """Reads keys from a file, one per line; empty lines and lines starting with ``#`` are ignored.

    Raises:
        ServingError: NOT_FOUND if the file does not exist; INVALID_ARGUMENT, with the line, for a
            key with fewer than 16 characters or characters other than visible ASCII, and for a
            file without keys.
    """
    keys = []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise ServingError(Code.NOT_FOUND, f"{path}; No such file or directory") from None
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"Error reading {path}: {error}") from None
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        # Errors must not contain the key, because they are logged.
        if not all("!" <= character <= "~" for character in line):
            raise invalid(f"{path}, line {number}: keys must consist of visible ASCII characters")
        if len(line) < _MIN_CHARACTERS:
            raise invalid(
                f"{path}, line {number}: keys must have at least {_MIN_CHARACTERS} characters, "
                f"got {len(line)}"
            )
        keys.append(line)
    if not keys:
        raise invalid(f"{path} contains no API key")
    return ApiKeys(keys)


class ApiKeyMiddleware:
    """ASGI middleware that answers requests without a valid key with 401.

    Args:
        cors_headers: the CORS headers of answers, without which a browser hides a 401 from its
            page; empty without CORS. With CORS, preflights need no key, because browsers send none.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, cors_headers: Mapping[str, str] = {}) -> None:
        self._app = app
        self._keys = keys
        self._cors_headers = cors_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        preflight = bool(self._cors_headers) and scope.get("method") == "OPTIONS"
        without_key = preflight or scope["type"] not in ("http", "websocket")
        if without_key or self._keys.valid_headers(Headers(scope=scope).get):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            response = Response(
                f'{{\n    "error": "{_REFUSAL}"\n}}',
                HTTP_STATUS[Code.UNAUTHENTICATED],
                {"www-authenticate": "Bearer", **self._cors_headers},
                "application/json",
            )
            await response(scope, receive, send)


class ApiKeyInterceptor(grpc.ServerInterceptor):
    """Refuses calls without a valid key with UNAUTHENTICATED, except health checks.

    The metadata keys are the names of the HTTP headers: ``x-api-key``, or ``authorization`` with
    ``Bearer KEY``.
    """

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> Any:
        """Returns the handler of an RPC; grpc calls it for every RPC."""
        metadata = {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in handler_call_details.invocation_metadata
        }
        health = handler_call_details.method.startswith(_HEALTH)
        if health or self._keys.valid_headers(metadata.get):
            return continuation(handler_call_details)
        # As a stream, so that the call is refused before a message arrives.
        return grpc.stream_stream_rpc_method_handler(_refuse)


def _refuse(_: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM files for TLS.

    Attributes:
        certificate: the server's certificate, followed by intermediate certificates, if any.
        key: the certificate's private key, without a password.
        client_authority: certificates of the authorities that sign clients' certificates. If it
            is set, every client needs a certificate.

    Raises:
        ServingError: INVALID_ARGUMENT if files are not readable or do not match.
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_authority: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without an argument, OpenSSL would ask for a password at the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise invalid(
                f"TLS certificate {self.certificate} with key {self.key}: {error}"
            ) from None
        if self.client_authority is None:
            return
        try:
            context.load_verify_locations(self.client_authority)
        except (OSError, ssl.SSLError) as error:
            raise invalid(f"TLS client authority {self.client_authority}: {error}") from None

    def uvicorn(self) -> dict[str, Any]:
        """Arguments of ``uvicorn.Config``."""
        options: dict[str, Any] = {
            "ssl_certfile": os.fspath(self.certificate),
            "ssl_keyfile": os.fspath(self.key),
        }
        if self.client_authority is not None:
            options["ssl_ca_certs"] = os.fspath(self.client_authority)
            options["ssl_cert_reqs"] = ssl.CERT_REQUIRED
        return options

    def grpc(self) -> grpc.ServerCredentials:
        """Credentials for ``grpc.Server.add_secure_port``."""
        authority = self.client_authority
        return grpc.ssl_server_credentials(
            [(Path(self.key).read_bytes(), Path(self.certificate).read_bytes())],
            root_certificates=None if authority is None else Path(authority).read_bytes(),
            require_client_auth=authority is not None,
        )
