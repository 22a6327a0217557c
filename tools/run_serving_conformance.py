"""Runs TensorFlow Serving's own black-box tests against the local server.

    python -m tools.run_serving_conformance CHECKOUT [--only NAME …] [--work DIRECTORY]

CHECKOUT is a work tree of https://github.com/tensorflow/serving. The file
`model_servers/tensorflow_model_server_test.py` is run unchanged, with a launcher instead of the
binary that translates the binary's flags. Needs portpicker, six, tf_keras (the test's models use
Keras 2) and the requirements of `bertfam serve`. Writes tools/results/serving_conformance.md.
"""

import argparse
import datetime
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tools" / "results" / "serving_conformance.md"
TEST = pathlib.Path("tensorflow_serving/model_servers/tensorflow_model_server_test.py")

# The flags of tensorflow_model_server that have different names here.
RENAMED = {
    "--port": "--grpc-port",
    "--rest_api_port": "--rest-port",
    "--rest_api_timeout_in_ms": "--rest-timeout-ms",
}

# Known reasons of failures.
REASONS = {
    "testPredictOnTfLite": "needs model.tflite, which is experimental upstream",
    "testPredictWithSignatureDefOnTfLite": "needs model.tflite, which is experimental upstream",
    "test_profiler_service_with_valid_trace_request": "needs the profiler service",
}

_NO_MODEL = "the model's saved_model.pb is missing in the checkout, so this case is not tested"

_LAUNCHER = """#!{python}
import sys
sys.path[:0] = [{root!r}, {root!r} + "/serving/server"]
from tools.run_serving_conformance import launch
sys.exit(launch(sys.argv[1:]))
"""

# The test's base class is in the checkout, the stubs in an installed package with the same name;
# and the test uses `os` from a module that no longer contains it.
_RUNNER = """
import os, runpy, sys
import tensorflow_serving
from tensorflow.python.platform import flags
flags.os = os
tensorflow_serving.__path__.append({package!r})
sys.argv[0] = {test!r}
runpy.run_path({test!r}, run_name="__main__")
"""


def launch(arguments: list[str]) -> int:
    """Starts the server with the flags of tensorflow_model_server; unsupported flags are printed to
    stderr and ignored."""
    from bertfam_serve.__main__ import add_flags, run
    from bertfam_tf.export.runtime.status import ServingError

    # TensorFlow Serving has no such flag: any client may do it.
    translated = ["--allow-reload-config"]
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag == "--model_base_path":
            translated.append(value)
        else:
            translated.append(RENAMED.get(flag, flag.replace("_", "-")) + equals + value)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    options, unknown = parser.parse_known_args(translated)
    if unknown:
        print(f"ignored: {' '.join(unknown)}", file=sys.stderr)
    try:
        run(options)
    except (ServingError, OSError, ValueError) as error:
        print(f"Failed to start server. Error: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=pathlib.Path, help="a work tree of tensorflow/serving")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases; writes no report")
    parser.add_argument("--work", help="directory for logs and temporary files")
    options = parser.parse_args()
    work = pathlib.Path(options.work or tempfile.mkdtemp(prefix="conformance-")).resolve()
    lay_out(options.checkout.resolve(), work)
    cases = run_tests(options.checkout.resolve(), work, options.only)
    for name, verdict, why in cases:
        print(f"{verdict:5} {name}{': ' if why else ''}{why}")
    if not options.only:
        RESULTS.write_text(report(cases), "utf-8")
    return 0


def lay_out(checkout: pathlib.Path, work: pathlib.Path) -> None:
    """Creates the directory tree that the test expects in TEST_SRCDIR."""
    package = work / "srcdir" / "tf_serving" / "tensorflow_serving"
    (package / "model_servers").mkdir(parents=True, exist_ok=True)
    launcher = package / "model_servers" / "tensorflow_model_server"
    launcher.write_text(_LAUNCHER.format(python=sys.executable, root=str(ROOT)))
    launcher.chmod(0o755)
    servables = package / "servables"
    if not servables.exists():
        servables.symlink_to(checkout / "tensorflow_serving" / "servables")


def run_tests(
    checkout: pathlib.Path, work: pathlib.Path, only: list[str]
) -> list[tuple[str, str, str]]:
    """Name, verdict and reason of each case."""
    runner = work / "runner.py"
    runner.write_text(
        _RUNNER.format(package=str(checkout / "tensorflow_serving"), test=str(checkout / TEST))
    )
    found = work / "result.xml"
    found.unlink(missing_ok=True)
    (work / "tmp").mkdir(exist_ok=True)
    names = [f"TensorflowModelServerTest.{name}" for name in only]
    flags = [f"--xml_output_file={found}", f"--test_tmpdir={work / 'tmp'}"]
    with open(work / "log.txt", "w") as log:
        subprocess.run(
            [sys.executable, runner, *names, *flags],
            env={
                **os.environ,
                "TEST_SRCDIR": str(work / "srcdir"),
                "TF_USE_LEGACY_KERAS": "1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    cases = []
    for case in ElementTree.parse(found).getroot().iter("testcase"):
        name = case.get("name", "")
        trouble = next((child for child in case if child.tag in ("failure", "error")), None)
        if case.find("skipped") is not None or case.get("status") in ("notrun", "skipped"):
            cases.append((name, "skip", "upstream's own"))
        elif trouble is None:
            cases.append((name, "pass", ""))
        else:
            known = _NO_MODEL if name == "test_tf_text" and lacks(checkout) else REASONS.get(name)
            cases.append((name, "fail", known or first_line(trouble)))
    return cases


def lacks(checkout: pathlib.Path) -> bool:
    """Whether the checkout lacks the large model file of test_tf_text."""
    testdata = checkout / "tensorflow_serving" / "servables" / "tensorflow" / "testdata"
    return not (testdata / "tf_text_regression" / "01" / "saved_model.pb").exists()


def first_line(trouble: ElementTree.Element) -> str:
    text = (trouble.get("message") or trouble.text or "").strip().splitlines()
    return re.sub(r"\s+", " ", re.sub(r"/\S+/", "…/", text[0] if text else ""))[:160]


def report(cases: list[tuple[str, str, str]]) -> str:
    counted = ", ".join(
        f"{sum(verdict == kind for _, verdict, _ in cases)} {kind}"
        for kind in ("pass", "fail", "skip")
    )
    rows = "\n".join(f"| {name} | {verdict} | {why} |" for name, verdict, why in cases)
    return (
        "# TensorFlow Serving's black-box tests against `bertfam serve`\n\n"
        "`model_servers/tensorflow_model_server_test.py` of tensorflow/serving, unmodified, by\n"
        f"`python -m tools.run_serving_conformance`, {datetime.date.today()}: {counted}.\n\n"
        "The file is unmodified. Around it: a launcher that translates the binary's flags and\n"
        "ignores those without a counterpart; TF_USE_LEGACY_KERAS=1, because the models use\n"
        "Keras 2; and an `os` attribute in TensorFlow's `flags` module, where the file expects "
        "it.\n"
        "`test_session` is not one of upstream's cases, but part of `tf.test.TestCase`.\n\n"
        f"| case | result | why |\n|---|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
