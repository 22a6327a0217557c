"""The server as a process of its own: what it imports, and how it starts and stops."""

import os
import pathlib
import signal
import subprocess
import sys

import httpx
import pytest

import bertfam_tf.serve

ROOT = pathlib.Path(bertfam_tf.serve.__file__).parents[2]

# `import tensorflow` takes Keras along where it finds it, so here nobody finds it.
WITHOUT_FRAMEWORKS = """
import runpy, sys
banned = {"keras", "tf_keras", "torch", "transformers"}
sys.modules.update(dict.fromkeys(banned))  # None there: as if it were not installed
try:
    runpy.run_module("bertfam_tf.serve", run_name="__main__")
finally:
    imported = {name.split(".")[0] for name, module in sys.modules.items() if module}
    print("imported:", sorted(banned & imported))
    family = {name for name in sys.modules if name.startswith("bertfam_tf.")}
    print("rooms:", sorted({name.split(".")[1] for name in family}))
"""


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
    assert out == "imported: []\nrooms: ['serve']\n"
    assert "Traceback" not in err


def test_nothing_to_serve(tmp_path):
    with start("-m", "bertfam_tf.serve", tmp_path, "--rest-port", 0) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert "Failed to start server. Error: NOT_FOUND: No versions of servable model" in err
    assert "Traceback" not in err


def test_help_is_quick_to_import():
    code = (
        "import sys, bertfam_tf.serve, bertfam_tf.serve.__main__\n"
        "print('tensorflow' in sys.modules)"
    )
    with start("-c", code) as process:
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("False\n", "")
