"""Loading: versions, warm-up records, and running a signature without a server."""

import re
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_serve import Models
from bertfam_tf.export.runtime import Code, ServingError, load


@pytest.fixture(scope="module")
def servable(base_path):
    return load(base_path / "00000123")


@pytest.fixture
def version_dir(base_path, tmp_path):
    """A version directory of one's own."""
    return shutil.copytree(base_path / "00000123", tmp_path / "1")


def floats(*values):
    return np.array(values, np.float32)


def test_run(servable):
    outputs = servable.run("several", {"x": floats(1, -2)})
    assert outputs["pairs"].dtype == np.float32
    np.testing.assert_array_equal(outputs["pairs"], [[1, -1], [-2, 2]])
    np.testing.assert_array_equal(outputs["positive"], [True, False])


@pytest.mark.parametrize("size", [0, 1, 22, 23, 24, 5000])
def test_strings_of_any_length(servable, size):
    text = np.array([[b"x" * size, b"\x00\xff"]], object)
    out = servable.run("echo_string", {"x": text})["y"]
    assert out.tolist() == text.tolist()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "uint16"])
def test_every_shape_and_dtype(servable, shape, dtype):
    x = np.ones(shape, tf.as_dtype(dtype).as_numpy_dtype)
    y = servable.run(f"echo_{dtype}", {"x": x})["y"]
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert (y == x).all()


@pytest.mark.parametrize(
    ("signature", "inputs", "code", "message"),
    [
        ("none", {}, Code.FAILED_PRECONDITION, 'Serving signature key "none" not found.'),
        ("", {}, Code.INVALID_ARGUMENT,
         "input size does not match signature: 0!=1 len({}) != len({x}). "
         "Sent extra: {}. Missing but required: {x}."),
        ("", {"x": floats(1), "z": floats(1)}, Code.INVALID_ARGUMENT,
         "input size does not match signature: 2!=1 len({x,z}) != len({x}). "
         "Sent extra: {z}. Missing but required: {}."),
        ("", {"z": floats(1)}, Code.INVALID_ARGUMENT,
         "Signature input alias: x(feed name: serving_default_x:0) not found in request and no "
         "default value provided. Inputs expected to be in the request {z}, "
         "or default input alias set: "),
        ("", {"x": np.array([b"1"], object)}, Code.INVALID_ARGUMENT,
         "Expects arg[0] to be float but string is provided"),
        ("", {"x": tf.make_tensor_proto(1.0).__class__()}, Code.INVALID_ARGUMENT,
         "tensor parsing error: x"),
        ("tokens", {"text": ["a"]}, Code.INVALID_ARGUMENT,
         "input 'text' must be an array, of texts an object array of bytes; got list of str"),
        ("tokens", {"text": np.array(["a", b"b"], object)}, Code.INVALID_ARGUMENT,
         "input 'text' must be an array, of texts an object array of bytes; "
         "got ndarray of bytes, str"),
    ],
)  # fmt: skip
def test_run_refusals(servable, signature, inputs, code, message):
    with pytest.raises(ServingError) as caught:
        servable.run(signature, inputs)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_tensor_protos_are_inputs_too(servable):
    outputs = servable.run("", {"x": tf.make_tensor_proto([2.0, 3.0])})
    np.testing.assert_array_equal(outputs["y"], [3.0, 3.5])


def test_run_deadline(servable):
    with pytest.raises(ServingError) as caught:
        servable.run("endless", {"x": np.array([1])}, timeout_ms=50)
    assert caught.value.code == Code.DEADLINE_EXCEEDED


def test_a_servable_outlives_its_last_reference_while_it_runs(version_dir):
    servable = load(version_dir)
    codes = []

    def run(run):
        try:
            run("endless", {"x": np.array([1])}, timeout_ms=300)
        except ServingError as error:
            codes.append(error.code)

    thread = threading.Thread(target=run, args=(servable.run,))
    thread.start()
    del servable
    thread.join()
    assert codes == [Code.DEADLINE_EXCEEDED]


def test_xla_is_off_only_while_a_session_runs(servable):
    compiled = tf.function(lambda x: x + 1, jit_compile=True)
    with pytest.raises(ServingError, match="XLA compilation disabled"):
        servable.run("jitted", {"x": floats(1)})
    assert compiled(tf.constant(1)) == 2


def test_nothing_to_load(tmp_path):
    with pytest.raises(ServingError) as caught:
        load(tmp_path)
    assert caught.value.code == Code.NOT_FOUND


def predict_log(signature="counted", by=1):
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.name = "a name that no server knows"
    request.model_spec.signature_name = signature
    request.inputs["by"].CopyFrom(tf.make_tensor_proto(by))
    return log


def write_warmup(version_dir, *records):
    path = version_dir / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


def test_warmup_runs_every_record(version_dir):
    logs = [predict_log(by=n).SerializeToString() for n in (1, 2, 3)]
    write_warmup(version_dir, *logs, b"")  # an empty log is skipped
    assert load(version_dir).run("counted", {"by": np.array(0, np.int32)})["calls"] == 6


def classify_log():
    log = prediction_log_pb2.PredictionLog()
    log.classify_log.request.model_spec.name = "x"
    return log.SerializeToString()


def session_log():
    log = prediction_log_pb2.PredictionLog()
    log.session_run_log.request.model_spec.name = "x"
    return log.SerializeToString()


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (predict_log("none").SerializeToString(), Code.FAILED_PRECONDITION),
        (predict_log(by=1.5).SerializeToString(), Code.INVALID_ARGUMENT),
        (classify_log(), Code.INVALID_ARGUMENT),
        (session_log(), Code.UNIMPLEMENTED),
        (b"\xff\xff\xff", Code.INVALID_ARGUMENT),
    ],
)
def test_a_failing_warmup_record_fails_the_load(version_dir, record, code):
    path = write_warmup(version_dir, predict_log().SerializeToString(), record)
    with pytest.raises(ServingError) as caught:
        load(version_dir)
    assert caught.value.code == code
    assert str(path) in caught.value.message


def test_a_request_that_fails_is_named(version_dir):
    path = write_warmup(
        version_dir, *[log.SerializeToString() for log in (predict_log(), predict_log("none"))]
    )
    text = f'Serving signature key "none" not found. (warm-up request 2 in {path})'
    with pytest.raises(ServingError, match=re.escape(text)):
        load(version_dir)


def test_too_many_warmup_records(version_dir):
    write_warmup(version_dir, *[b""] * 1001)
    with pytest.raises(ServingError, match=r"exceeds the maximum \(1000\)") as caught:
        load(version_dir)
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_a_damaged_warmup_file(version_dir):
    path = write_warmup(version_dir, predict_log().SerializeToString())
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ServingError, match="verify your warmup data is in TFRecord") as caught:
        load(version_dir)
    assert caught.value.code == Code.DATA_LOSS


def test_the_latest_version_is_served(version_dir):
    for name in ("2", "10", "010", "11.tmp", "-12", "v13", str(2**63)):
        if name == "10":
            shutil.copytree(version_dir, version_dir.parent / name)
        else:
            (version_dir.parent / name).mkdir()
    models = Models()
    assert models.add("m", version_dir.parent) == 10
    assert models.find("m")[0] == 10
    for version in (1, 2, 11):
        with pytest.raises(ServingError) as caught:
            models.find("m", version)
        assert caught.value.code == Code.NOT_FOUND


def test_no_version(tmp_path):
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ServingError, match="No versions of servable m found") as caught:
        Models().add("m", tmp_path)
    assert caught.value.code == Code.NOT_FOUND


def test_no_base_path(tmp_path):
    with pytest.raises(ServingError, match="Could not find base path") as caught:
        Models().add("m", tmp_path / "absent")
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_the_config_of_sessions(base_path):
    config = config_pb2.ConfigProto(operation_timeout_in_ms=200)
    models = Models(session_config=config)
    models.add("m", base_path)
    _, servable = models.find("m")
    with pytest.raises(ServingError) as caught:
        servable.run("endless", {"x": np.array([1])})
    assert caught.value.code == Code.DEADLINE_EXCEEDED
