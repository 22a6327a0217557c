"""The server as a process of its own: what it imports, and how it starts and stops."""

import argparse
import signal
import sys
import time
from concurrent import futures

import grpc
import httpx
import pytest
import tensorflow as tf
from tensorflow_serving.apis import model_pb2, predict_pb2

from bertfam_serve.__main__ import _session_config, add_flags
from bertfam_serve.__main__ import main as serve_main
from bertfam_tf.cli import main as bertfam_main
from tests.selection import in_full
from tests.serving.half_plus import Stubs, predict_request
from tests.serving.process import start

# `import tensorflow` imports Keras where it is installed, so it is hidden here.
WITHOUT_FRAMEWORKS = """
import runpy, sys
banned = {"keras", "tf_keras", "torch", "transformers"}
sys.modules.update(dict.fromkeys(banned))  # None there: as if it were not installed
try:
    runpy.run_module("bertfam_serve", run_name="__main__")
finally:
    imported = {name.split(".")[0] for name, module in sys.modules.items() if module}
    print("imported:", sorted(banned & imported))
    family = {name for name in sys.modules if name.startswith("bertfam_tf.")}
    print("rooms:", sorted({name.split(".")[1] for name in family}))
"""


@pytest.mark.extended
@pytest.mark.parametrize("number", in_full([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM]))
def test_serves_text_without_any_framework_until_a_signal(base_path, number):
    arguments = (base_path, "--model-name", "m", "--rest-port", 0, "--grpc-port", 0)
    with start("-c", WITHOUT_FRAMEWORKS, *arguments) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("Serving version 123 of m at http://127.0.0.1:"), (
                process.communicate()
            )
            url = line.split()[-1]
            assert process.stdout.readline().startswith("gRPC at 127.0.0.1:")
            body = {"signature_name": "tokens", "inputs": ["one two"]}
            answer = httpx.post(f"{url}:predict", json=body, timeout=60).json()
            assert answer["outputs"]["count"] == [2]
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    imported, rooms = out.splitlines()
    assert imported == "imported: []"
    assert rooms == "rooms: ['export', 'hints', 'keras_objects', 'lazy', 'names', 'parsing']"
    assert "Traceback" not in err


def test_the_previous_name_warns():
    code = "import bertfam_tf.serve as s; print(s.running_server.__module__, s.load.__module__)"
    with start("-c", code) as process:
        out, err = process.communicate(timeout=60)
    assert out == "bertfam_serve.server bertfam_tf.export.runtime.loader\n"
    assert "FutureWarning: bertfam_tf.serve is now bertfam_serve" in err
    with start("-m", "bertfam_tf.serve", "--help") as process:
        out, err = process.communicate(timeout=60)
    assert out.startswith("usage: python -m bertfam_serve")
    assert "FutureWarning" in err


class Endless(tf.Module):
    """Writes the file that a request names, and waits for a queue that stays empty."""

    @tf.function(input_signature=[tf.TensorSpec([1], tf.string, "x")])
    def run(self, x):
        with tf.control_dependencies([tf.io.write_file(x[0], "")]):
            queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shapes=[[1]])
            (n,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])
        return {"n": tf.ensure_shape(n, [1])}


@pytest.mark.extended
def test_requests_that_the_end_cancels_get_a_503(tmp_path):
    module = Endless()
    tf.saved_model.save(module, str(tmp_path / "m" / "1"), signatures=module.run)
    flags = ["--model-name=m", "--rest-port=0", "--grpc-port=0", "--grace-seconds=1"]
    flags += ["--rest-timeout-ms=600000"]
    with start("-m", "bertfam_serve", tmp_path / "m", *flags) as process:
        try:
            url = process.stdout.readline().split()[-1]
            target = process.stdout.readline().split()[-1]
            started = [tmp_path / name for name in "abc"]

            def post(path):
                return httpx.post(f"{url}:predict", json={"inputs": [str(path)]}, timeout=600)

            def call(path):
                request = predict_pb2.PredictRequest(model_spec=model_pb2.ModelSpec(name="m"))
                request.inputs["x"].CopyFrom(tf.make_tensor_proto([str(path)]))
                with Stubs(target) as stubs, pytest.raises(grpc.RpcError) as caught:
                    stubs.prediction.Predict(request, timeout=600)
                return caught.value.code()

            with futures.ThreadPoolExecutor() as pool:
                answers = [pool.submit(post, path) for path in started[:2]]
                code = pool.submit(call, started[2])
                while not all(path.exists() for path in started):
                    assert process.poll() is None
                    time.sleep(0.05)
                process.terminate()
                _, err = process.communicate(timeout=600)
            for answer in answers:
                assert answer.result().status_code == 503
                assert "is shutting down" in answer.result().json()["error"]
            assert code.result() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if "ancel" in line]
    assert len(lines) == 1
    assert lines[0].endswith("Cancel 2 running task(s), timeout graceful shutdown exceeded")


@pytest.mark.full
def test_nothing_to_serve(tmp_path):
    with start("-m", "bertfam_serve", tmp_path, "--rest-port", 0) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert "Failed to start server. Error: NOT_FOUND: No versions of servable model" in err
    assert "Traceback" not in err


@pytest.mark.full
def test_a_configuration_file(half_path, tmp_path):
    path = tmp_path / "models.conf"
    models = "".join(
        f'config {{ name: "{name}" base_path: "{half_path}" model_platform: "tensorflow" }} '
        for name in ("a", "b")
    )
    path.write_text(f"model_config_list {{ {models} }}")
    socket = tmp_path / "grpc.sock"
    flags = [f"--model-config-file={path}", "--port=0", "--grpc-port=-1"]
    flags += [f"--grpc-socket-path={socket}", "--rest-api-enable-cors-support"]
    with start("-m", "bertfam_serve", *flags) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("Serving at http://127.0.0.1:"), line
            url = line.split()[-1]
            for name in ("a", "b"):
                answer = httpx.post(f"{url}/{name}:predict", json={"instances": [2]}, timeout=60)
                assert answer.json() == {"predictions": [3.0]}
                assert answer.headers["access-control-allow-origin"] == "*"
            with Stubs(f"unix:{socket}") as stubs:
                y = stubs.prediction.Predict(predict_request(2, model="b")).outputs["y"]
            assert y.float_val == [3.0]
        finally:
            process.terminate()
        assert process.wait(60) == 0


@pytest.mark.full
def test_batching_and_metrics(half_path, tmp_path):
    batching, monitoring = (tmp_path / name for name in ("batching", "monitoring"))
    batching.write_text("max_batch_size { value: 2 }")
    monitoring.write_text('prometheus_config { enable: true path: "/metrics" }')
    flags = ["--enable-batching", f"--batching-parameters-file={batching}"]
    flags += [f"--monitoring-config-file={monitoring}", "--port=0", "--grpc-port=-1"]
    with start("-m", "bertfam_serve", half_path, *flags) as process:
        try:
            url = process.stdout.readline().split()[-1]
            answer = httpx.post(f"{url}:predict", json={"instances": [2.0, 4.0]}, timeout=60)
            assert answer.json() == {"predictions": [3.0, 4.0]}
            answer = httpx.post(f"{url}:predict", json={"instances": [1, 2, 3]}, timeout=60)
            assert "is larger than maximum input batch size 2" in answer.json()["error"]
            page = httpx.get(f"{url.partition('/v1')[0]}/metrics", timeout=60).text
            counted = ':tensorflow:serving:request_count{model_name="model",status="%s"} 1.0\n'
            assert counted % "OK" in page
            assert counted % "INVALID_ARGUMENT" in page
            ran = 'runtime_latency_count{API="Predict",model_name="model",runtime="TF1"} 1.0\n'
            assert ran in page
        finally:
            process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("flags", "intra", "inter", "spins"),
    [
        ([], 1, 0, False),
        (["--tensorflow-intra-op-parallelism=0"], 0, 0, False),
        (["--tensorflow-inter-op-parallelism=3"], 1, 3, False),
        (["--tensorflow-session-config-file={file}"], 0, 5, True),
        (["--tensorflow-session-config-file={file}", "--tensorflow-intra-op=4"], 4, 5, True),
    ],
)
def test_threads(tmp_path, flags, intra, inter, spins):
    file = tmp_path / "session"
    file.write_text("inter_op_parallelism_threads: 5")
    parser = argparse.ArgumentParser()
    add_flags(parser)
    config = _session_config(parser.parse_args([flag.format(file=file) for flag in flags]))
    assert config.intra_op_parallelism_threads == intra
    assert config.inter_op_parallelism_threads == inter
    assert config.experimental.disable_thread_spinning != spins


BAD_CONFIG = "Error parsing text-format tensorflow.serving.ModelServerConfig"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--model-config-file={tmp}/models.conf"], BAD_CONFIG),
        ([], "expected either a base path or a configuration"),
        (["{tmp}", "--grpc-channel-arguments=a"], "channel argument 'a': expected name=value"),
        (["{tmp}", "--batching-parameters-file=x"], "needs --enable-batching"),
        (["{tmp}", "--enable-batching", "--batching-parameters-file={tmp}/no"], "NOT_FOUND"),
        (["{tmp}", "--monitoring-config-file={tmp}/models.conf"], "models.conf"),
        (["{tmp}", "--tensorflow-session-config-file={tmp}/models.conf"], "tensorflow.ConfigProto"),
        (["{tmp}", "--api-key-file={tmp}/models.conf"], "at least 16 characters, got 8"),
        (["{tmp}", "--tls-key=x"], "TLS needs both --tls-certificate and --tls-key"),
    ],
)
def test_refused_flags(tmp_path, flags, error, monkeypatch, capsys):
    (tmp_path / "models.conf").write_text("improper")
    flags = [flag.format(tmp=tmp_path) for flag in flags] + ["--rest-port=0", "--grpc-port=0"]
    monkeypatch.setattr(sys, "argv", ["serve", *flags])
    assert serve_main() == 1
    assert capsys.readouterr().err.startswith("Failed to start server. Error: ")
    assert bertfam_main(["serve", *flags]) in (1, 2)
    out, err = capsys.readouterr()
    assert (out, error in err) == ("", True)


def test_help_is_quick_to_import():
    code = "import sys, bertfam_serve, bertfam_serve.__main__\nprint('tensorflow' in sys.modules)"
    with start("-c", code) as process:
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("False\n", "")
