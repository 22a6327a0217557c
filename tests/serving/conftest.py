"""SavedModels and servers.

One has a signature for each rule of TensorFlow Serving's APIs; one is the smallest classifier's.
"""

import httpx
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

import bertfam_tf as bf
from bertfam_serve import running_server
from bertfam_tf.export.runtime import load
from tests.serving import half_plus

ECHOED = [
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "string"),
]


def _spec(dtype, name, shape=None):
    return tf.TensorSpec(shape, dtype, name=name)


class Zoo(tf.Module):
    """`serving_default` is half plus two, declared [None] and run on any shape."""

    def __init__(self):
        self.half = tf.Variable(0.5)
        self.two = tf.Variable(2.0)
        self.calls = tf.Variable(0)
        self.tokenizer = tf_text.WhitespaceTokenizer()

    def signatures(self):
        signatures = {
            "serving_default": self.default.get_concrete_function(),
            "jitted": self.jitted.get_concrete_function(),
            "counted": self.counted.get_concrete_function(),
            "tokens": self.tokens.get_concrete_function(),
            "pair": self.pair.get_concrete_function(),
            "several": self.several.get_concrete_function(),
            "scalar": self.scalar.get_concrete_function(),
            "uneven": self.uneven.get_concrete_function(),
            "endless": self.endless.get_concrete_function(),
        }
        for name in ECHOED:
            dtype = tf.dtypes.as_dtype(name)
            echo = tf.function(lambda x: {"y": tf.identity(x)}, input_signature=[_spec(dtype, "x")])
            signatures[f"echo_{name}"] = echo.get_concrete_function()
        return signatures

    @tf.function(input_signature=[_spec(tf.float32, "x", [None])])
    def default(self, x):
        return {"y": self.half * x + self.two}

    @tf.function(input_signature=[_spec(tf.float32, "x", [None])], jit_compile=True)
    def jitted(self, x):
        return {"y": self.half * x + self.two}

    @tf.function(input_signature=[_spec(tf.int32, "by", [])])
    def counted(self, by):
        return {"calls": self.calls.assign_add(by)}

    @tf.function(input_signature=[_spec(tf.string, "text", [None])])
    def tokens(self, text):
        tokens = self.tokenizer.tokenize(text)
        return {"count": tokens.row_lengths(), "raw_bytes": text, "text": text}

    @tf.function(input_signature=[_spec(tf.float32, "a"), _spec(tf.int32, "b")])
    def pair(self, a, b):
        return {"sum": a + tf.cast(b, tf.float32)}

    @tf.function(input_signature=[_spec(tf.float32, "x", [None])])
    def several(self, x):
        return {"twice": 2 * x, "pairs": tf.stack([x, -x], 1), "positive": x > 0}

    @tf.function(input_signature=[_spec(tf.float32, "x", [None])])
    def scalar(self, x):
        return {"total": tf.reduce_sum(x)}

    @tf.function(input_signature=[_spec(tf.float32, "x", [None])])
    def uneven(self, x):
        return {"a": x, "b": tf.concat([x, x], 0)}

    @tf.function(input_signature=[_spec(tf.int64, "x", [None])])
    def endless(self, x):
        (n,) = tf.while_loop(lambda n: n < 10**12, lambda n: (n + 1,), (tf.constant(0, tf.int64),))
        return {"y": x + n}


@pytest.fixture(scope="session")
def base_path(tmp_path_factory):
    """The model as version 123, with leading zeros, beside entries that are not versions."""
    path = tmp_path_factory.mktemp("zoo")
    zoo = Zoo()
    tf.saved_model.save(zoo, str(path / "00000123"), signatures=zoo.signatures())
    (path / "being-copied").mkdir()
    (path / "README").touch()
    return path


@pytest.fixture(scope="session")
def server(base_path):
    with running_server(base_path, model_name="zoo") as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def predict(client):
    """Posts JSON to the model's default or a named signature; returns the response."""

    def post(body, signature=""):
        if signature:
            body = f'{{"signature_name": "{signature}", {body.lstrip()[1:]}'
        return client.post("/v1/models/zoo:predict", content=body)

    return post


@pytest.fixture(scope="session")
def half_path(tmp_path_factory):
    """Half plus two as version 5, with signatures on tf.Examples."""
    path = tmp_path_factory.mktemp("half")
    half_plus.save(path, 5, 2)
    return path


@pytest.fixture(scope="session")
def half(half_path):
    """A server over `half_path`, model "m"."""
    with running_server(half_path, model_name="m", allow_reload_config=True) as running:
        yield running


@pytest.fixture(scope="session")
def stubs(half):
    with half_plus.Stubs(half.grpc_target) as stubs:
        yield stubs


@pytest.fixture(scope="session")
def post(half):
    """Posts JSON to a verb of model "m"; returns the response."""
    with httpx.Client(base_url=half.url, timeout=60) as client:

        def post(verb, body):
            content = {"content": body} if isinstance(body, bytes) else {"json": body}
            return client.post(f"/v1/models/m:{verb}", **content)

        yield post


@pytest.fixture(scope="session")
def export(smallest, tmp_path_factory):
    """A base path with version 1."""
    directory = tmp_path_factory.mktemp("exports") / "model"
    bf.TextClassifier.from_pretrained(smallest, pair=False).export(directory)
    return directory


@pytest.fixture(scope="session")
def servable(export):
    return load(export / "1")


@pytest.fixture(scope="session")
def export_server(export):
    with running_server(export, model_name="m") as running:
        yield running


@pytest.fixture(scope="session")
def address(export_server):
    return export_server.grpc_target
