"""API keys and TLS: which requests are refused, with which code, and that no others are."""

import concurrent.futures
import contextlib
import datetime
import ipaddress
import ssl
import threading
import time

import grpc
import httpx
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bertfam_serve.security import (
    ApiKeyInterceptor,
    ApiKeyMiddleware,
    ApiKeys,
    Tls,
    read_keys,
)
from bertfam_tf.export.runtime import Code, ServingError
from tests.serving.half_plus import predict_request
from tests.serving.process import start

KEY = "correct-horse-battery"
OTHER = "another-valid-key-0123456789"

VALID = [
    {"x-api-key": KEY},
    {"x-api-key": OTHER},
    {"authorization": f"Bearer {KEY}"},
    {"authorization": f"bearer {KEY}"},
    {"x-api-key": KEY, "authorization": "Basic abc"},
    {"x-api-key": "wrong", "authorization": f"Bearer {KEY}"},
]
REFUSED = [
    {},
    {"x-api-key": ""},
    {"x-api-key": KEY[:-1]},
    {"x-api-key": KEY + "x"},
    {"x-api-key": KEY.upper()},
    {"x-api-key": f"Bearer {KEY}"},
    {"authorization": KEY},
    {"authorization": f"Basic {KEY}"},
    {"authorization": "Bearer"},
    {"api-key": KEY},
]


@pytest.fixture
def keys():
    return ApiKeys([KEY, OTHER])


# ------------------------------------------------------------------------------------------- REST


@pytest.fixture
def client(keys):
    async def echo(websocket):
        await websocket.accept()
        await websocket.send_text("open")
        await websocket.close()

    app = Starlette(
        routes=[
            Route("/v1/{path:path}", lambda _: PlainTextResponse("in"), methods=["GET", "POST"]),
            WebSocketRoute("/socket", echo),
        ]
    )
    return TestClient(ApiKeyMiddleware(app, keys))


@pytest.mark.parametrize("headers", VALID)
def test_requests_with_a_key(client, headers):
    assert client.get("/v1/models/m", headers=headers).text == "in"
    assert client.post("/v1/models/m:predict", headers=headers, content=b"{}").text == "in"
    with client.websocket_connect("/socket", headers=headers) as socket:
        assert socket.receive_text() == "open"


@pytest.mark.parametrize("headers", REFUSED)
@pytest.mark.parametrize("path", ["/v1/models/m", "/v1/models/m:predict", "/elsewhere", "/"])
def test_requests_without_one(client, headers, path):
    response = client.post(path, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"].startswith("A valid API key is required")
    assert response.headers["www-authenticate"] == "Bearer"


def test_preflights_without_cors_need_a_key(client):
    assert client.options("/v1/models/m", headers={"origin": "http://a.page"}).status_code == 401


def test_bytes_beyond_ascii_are_a_wrong_key(client):
    assert client.get("/v1/m", headers={"x-api-key": b"\xff\xfe\xe9"}).status_code == 401


def test_sockets_without_one(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/socket"):
        pass


# ------------------------------------------------------------------------------------------- gRPC


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method.endswith("Stream"):
            return grpc.stream_stream_rpc_method_handler(lambda messages, _: iter(messages))
        return grpc.unary_unary_rpc_method_handler(lambda message, _: message)


@contextlib.contextmanager
def grpc_server(interceptors=(), credentials=None):
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(4), handlers=[Echo()], interceptors=interceptors
    )
    add = server.add_secure_port if credentials else server.add_insecure_port
    port = add("127.0.0.1:0", *([credentials] if credentials else []))
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.fixture
def call(keys):
    with (
        grpc_server([ApiKeyInterceptor(keys)]) as address,
        grpc.insecure_channel(address) as channel,
    ):

        def ask(method, headers):
            metadata = tuple(headers.items())
            if method.endswith("Stream"):
                answers = channel.stream_stream(method)(
                    iter([b"hi"]), metadata=metadata, timeout=20
                )
                return next(answers)
            return channel.unary_unary(method)(b"hi", metadata=metadata, timeout=20)

        yield ask


METHODS = ["/tensorflow.serving.PredictionService/Predict", "/any.Service/Stream"]


@pytest.mark.parametrize("method", METHODS)
def test_calls_with_a_key(call, method):
    for headers in VALID:
        assert call(method, headers) == b"hi"


@pytest.mark.parametrize("method", METHODS)
def test_calls_without_one(call, method):
    for headers in [*REFUSED, {"x-api-key-bin": KEY.encode()}]:
        with pytest.raises(grpc.RpcError) as caught:
            call(method, headers)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert "API key" in caught.value.details()


def test_health_needs_no_key(call):
    assert call("/grpc.health.v1.Health/Check", {}) == b"hi"


# ------------------------------------------------------------------------------------------- keys


def test_a_key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# of the team\n\n  {KEY}  \r\n{OTHER}", "utf-8")
    keys = read_keys(path)
    assert keys.valid(KEY.encode())
    assert keys.valid(OTHER.encode())
    assert not keys.valid(b"# of the team")
    assert not keys.valid(b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "contains no API key"),
        (b"# none\n", "contains no API key"),
        (b"# one\nshort", "line 2: keys must have at least 16 characters, got 5"),
        (f"{KEY}\ntwo words in a key".encode(), "line 2: keys must consist of visible ASCII"),
        ("schlüssel-mit-umlaut".encode(), "line 1: keys must consist of visible ASCII"),
        (b"\xff\xfe" * 20, "Error reading"),
    ],
)
def test_mistakes_in_a_key_file_are_told_without_the_key(tmp_path, content, message):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ServingError) as caught:
        read_keys(path)
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert message in caught.value.message
    assert "short" not in caught.value.message
    assert "two words" not in caught.value.message


def test_a_missing_key_file(tmp_path):
    with pytest.raises(ServingError) as caught:
        read_keys(tmp_path / "none")
    assert caught.value.code == Code.NOT_FOUND
    with pytest.raises(ServingError, match="every request would be refused"):
        ApiKeys([])


# -------------------------------------------------------------------------------------------- TLS


def issue(folder, name, issuer=None):
    """Writes name.pem and name.key, signed by `issuer` or itself; returns an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer_subject, issuer_key = issuer or (subject, key)
    now = datetime.datetime.now(datetime.UTC)
    local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    uses = dict.fromkeys(
        """
        content_commitment key_encipherment data_encipherment key_agreement crl_sign encipher_only
        decipher_only
        """.split(),
        False,
    )
    uses = x509.KeyUsage(digital_signature=True, key_cert_sign=issuer is None, **uses)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(local, critical=False)
        .add_extension(uses, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return subject, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    authority = issue(folder, "authority")
    issue(folder, "server", authority)
    issue(folder, "client", authority)
    issue(folder, "stranger")
    return folder


def tls(folder, client=False):
    authority = folder / "authority.pem" if client else None
    return Tls(folder / "server.pem", folder / "server.key", authority)


def client_context(folder, who=None):
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    if who:
        context.load_cert_chain(folder / f"{who}.pem", folder / f"{who}.key")
    return context


@contextlib.contextmanager
def rest_server(options):
    async def app(scope, receive, send):
        await PlainTextResponse("in")(scope, receive, send)

    config = uvicorn.Config(app, port=0, lifespan="off", log_level="critical", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"https://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def test_rest_over_tls(folder):
    with rest_server(tls(folder).uvicorn()) as url:
        assert httpx.get(url, verify=client_context(folder)).text == "in"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(url)
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http"))


def test_rest_with_clients_certificates(folder):
    with rest_server(tls(folder, client=True).uvicorn()) as url:
        assert httpx.get(url, verify=client_context(folder, "client")).text == "in"
        for who in (None, "stranger"):
            with pytest.raises(httpx.HTTPError):
                httpx.get(url, verify=client_context(folder, who))


def read(folder, name):
    return (folder / name).read_bytes()


@pytest.mark.parametrize("client", [False, True])
def test_grpc_over_tls(folder, client):
    def ask(**options):
        credentials = grpc.ssl_channel_credentials(read(folder, "authority.pem"), **options)
        with grpc.secure_channel(address, credentials) as channel:
            return channel.unary_unary("/a.B/C")(b"hi", timeout=10)

    own = {
        "private_key": read(folder, "client.key"),
        "certificate_chain": read(folder, "client.pem"),
    }
    with grpc_server(credentials=tls(folder, client).grpc()) as address:
        assert ask(**own) == b"hi"
        if client:
            with pytest.raises(grpc.RpcError):
                ask()
        else:
            assert ask() == b"hi"
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/a.B/C")(b"hi", timeout=10)


def test_files_that_are_wrong(folder, tmp_path):
    for certificate, key in (
        ("server.pem", "client.key"),
        ("server.key", "server.pem"),
        ("none.pem", "server.key"),
    ):
        with pytest.raises(ServingError, match=f"{certificate}.*{key}") as caught:
            Tls(folder / certificate, folder / key)
        assert caught.value.code == Code.INVALID_ARGUMENT
    for authority in (tmp_path / "none.pem", folder / "server.key"):
        with pytest.raises(ServingError, match=f"client authority .*{authority.name}"):
            Tls(folder / "server.pem", folder / "server.key", authority)


def test_a_key_with_a_password_is_refused_not_asked_for(folder, tmp_path):
    key = serialization.load_pem_private_key(read(folder, "server.key"), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ServingError, match=r"locked\.key"):
        Tls(folder / "server.pem", locked)


# ------------------------------------------------------------------------------------- the command


@pytest.mark.full
def test_the_command_takes_keys_and_certificates(folder, half_path):
    (folder / "keys").write_text(f"# ours\n{KEY}\n")
    flags = [f"--tls-certificate={folder}/server.pem", f"--tls-key={folder}/server.key"]
    flags += [f"--api-key-file={folder}/keys", "--port=0", "--grpc-port=0"]
    flags += ["--rest-api-enable-cors-support"]
    with start("-m", "bertfam_serve", half_path, *flags, stderr=None) as process:
        try:
            url, target = (process.stdout.readline().split()[-1] for _ in range(2))
            assert url.startswith("https://")
            trusted = client_context(folder, None)
            asked = {"json": {"instances": [2]}, "verify": trusted, "timeout": 60}
            refused = httpx.post(f"{url}:predict", **asked)
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == "*"
            origin = {"origin": "https://a.page"}
            preflight = httpx.options(f"{url}:predict", headers=origin, verify=trusted)
            assert preflight.status_code == 200
            assert "x-api-key" in preflight.headers["access-control-allow-headers"].lower()
            answer = httpx.post(f"{url}:predict", headers={"x-api-key": KEY}, **asked)
            assert answer.json() == {"predictions": [3.0]}
            credentials = grpc.ssl_channel_credentials(read(folder, "authority.pem"))
            with grpc.secure_channel(target, credentials) as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                request = predict_request(2, model="model")
                with pytest.raises(grpc.RpcError) as refused:
                    stub.Predict(request)
                assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
                found = stub.Predict(request, metadata=[("x-api-key", KEY)])
                assert found.outputs["y"].float_val == [3.0]
        finally:
            process.terminate()
        assert process.wait(60) == 0
