"""Sends malformed requests to a local server, and counts the answers.

    python -m tools.fuzz_server --cases 20000 --seed 0

The server is a process of its own over a small model and over exports with each tokenizer
(`tests.support.fuzz_exports`), which have to answer requests that fit their signatures with the
right rows and to refuse all others. Every answer has to obey the contract: no status 5xx but 501
(not possible in JSON or Serving) and 504 (deadline), a body of JSON, no dropped connection. In
between and at the end, good requests must get the right answers. Violations are printed with their
case, which `--seed` and `--only` repeat; the exit status is then 1.
"""

import argparse
import collections
import contextlib
import functools
import http.client
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from tests.support.checkout import serve
from tests.support.compare_tokenizers import markdown
from tests.support.fuzz_exports import Exports
from tests.support.fuzz_requests import Case, case
from tests.support.fuzz_tasks import EXPORTS, write

# Codes for requests that cannot be served, and for deadlines.
ALLOWED_5XX = {501, 504}
GOOD = b'{"signature_name": "words", "instances": ["two words", ""]}'
GOOD_ANSWER = {"predictions": [{"count": 2, "text": "two words"}, {"count": 0, "text": ""}]}
_TIMEOUT_S = 60
_GOOD_EVERY = 200


def write_model(directory: Path) -> None:
    """A SavedModel with signatures for numbers, texts, both, and tf.Examples."""
    import tensorflow as tf

    vector = functools.partial(tf.TensorSpec, [None])
    graph = functools.partial(tf.function, autograph=False)

    class Model(tf.Module):
        @graph(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def halves(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": x / 2}

        @graph(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def words(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"count": tf.strings.split(text).row_lengths(), "text": text}

        @graph(input_signature=[vector(tf.float32, "a"), vector(tf.string, "b")])
        def pair(self, a: tf.Tensor, b: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": a + tf.cast(tf.strings.length(b), tf.float32)}

        @graph(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
        def examples(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            features = {"text": tf.io.FixedLenFeature([], tf.string)}
            length = tf.strings.length(tf.io.parse_example(inputs, features)["text"])
            scores = tf.cast(length, tf.float32)[:, tf.newaxis]
            return {"classes": tf.fill(tf.shape(scores), "long"), "scores": scores}

    model = Model()
    signatures = {"serving_default": model.halves}
    signatures |= {name: getattr(model, name) for name in ("words", "pair", "examples")}
    found = {name: function.get_concrete_function() for name, function in signatures.items()}
    tf.saved_model.save(model, str(directory / "1"), signatures=found)


class Server(NamedTuple):
    """A running server and its ports."""

    process: subprocess.Popen[str]
    port: int
    grpc_port: int
    exports: Exports | None = None

    def resident_mib(self) -> float:
        """Its memory, on Linux; 0 once it has ended."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s*(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0


@contextlib.contextmanager
def server(*flags: str, exports: Sequence[str] = (), keep: Path | None = None) -> Iterator[Server]:
    """A server in a process of its own, over `write_model`.

    Args:
        *flags: its further arguments.
        exports: names in `EXPORTS` that it serves too.
        keep: a directory in which models are written, or found from an earlier time.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(keep or stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        if not (folder / "m").exists():
            write_model(folder / "m")
        for name in tqdm(exports, desc="exports", disable=not exports):
            if not (folder / name / "1").exists():
                write(folder / name, name)
        models = "".join(
            f'config {{ name: "{name}" base_path: "{folder}/{name}" '
            'model_platform: "tensorflow" } '
            for name in ("m", *exports)
        )
        config = folder / "models.config"
        config.write_text(f"model_config_list {{ {models} }}")
        arguments = ("--model-config-file", str(config), *flags)
        log = stack.enter_context(open(folder / "log", "w"))
        running = stack.enter_context(serve(*arguments, stderr=log))
        yield Server(*running, Exports(folder, list(exports)) if exports else None)


def send(case: Case, server: Server) -> tuple[str, bytes]:
    """The status (a gRPC code by its name) and the body; or what broke."""
    if case.grpc:
        return _call(case, server)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_S)
    try:
        connection.putrequest(case.method, case.path, skip_accept_encoding=True)
        for name, value in case.headers:
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("Content-Length", str(len(case.body)))
        connection.endheaders(case.body)
        response = connection.getresponse()
        return str(response.status), response.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, b""
    finally:
        connection.close()


_CHANNELS: dict[int, Any] = {}


def _call(case: Case, server: Server) -> tuple[str, bytes]:
    import grpc

    port = server.grpc_port
    if port not in _CHANNELS:
        _CHANNELS[port] = grpc.insecure_channel(f"127.0.0.1:{port}")
    try:
        return "OK", _CHANNELS[port].unary_unary(case.path)(case.body, timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code().name, error.details().encode()


def fault(case: Case, status: str, body: bytes) -> str:
    """Returns the fault of an answer; empty if there is none."""
    if case.grpc:
        # grpc's own: a message that is no proto is INTERNAL, an unknown method UNIMPLEMENTED.
        text = body.decode("utf-8", "replace")
        own = status == "INTERNAL" and "deserializing request" in text
        broken = status in ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS") and not own
        return f"{status}: {text}" if broken else ""
    if not status.isdecimal():
        return f"no answer: {status}"
    if int(status) >= 500 and int(status) not in ALLOWED_5XX:
        return f"{status}: {body[:200]!r}"
    api = case.path.lower().startswith("/v1/") and case.method != "HEAD"
    if api and body and not _is_json(body):
        return f"{status}, not JSON: {body[:200]!r}"
    return ""


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body.decode("utf-8", "replace"))
    except ValueError:
        return False
    return True


def check_good(server: Server) -> str:
    """Returns the fault of the answer to a good request; empty if there is none."""
    good = Case("good", "POST", "/v1/models/m:predict", GOOD)
    status, body = send(good, server)
    if status != "200" or json.loads(body) != GOOD_ANSWER:
        return f"a good request got {status}: {body[:200]!r}"
    return "" if server.process.poll() is None else f"it ended: {server.process.returncode}"


# Requests between two looks at the server's memory.
_PART = 2_000


class Report(NamedTuple):
    """What came back.

    Fields:
        counts: answers by kind of case and status.
        faults: descriptions, with the number of the case.
        fitting: for requests to exports, the number of compared rows, and of requests that had to
            be refused.
    """

    counts: collections.Counter[tuple[str, str]]
    faults: list[tuple[int, Case, str]]
    fitting: collections.Counter[str]


def fuzz(
    server: Server, seed: int, numbers: list[int], *, threads: int = 4, quiet: bool = False
) -> Report:
    """Sends the cases with these numbers, several at a time."""
    report = Report(collections.Counter(), [], collections.Counter())

    def one(number: int) -> tuple[int, Case, str, str]:
        sent = case(seed, number, True, server.exports)
        status, body = send(sent, server)
        wrong = fault(sent, status, body)
        if not wrong and sent.request is not None and server.exports is not None:
            wrong = server.exports.fault(sent.request, status, body)
        if not wrong and number % _GOOD_EVERY == 0:
            wrong = check_good(server)
        return number, sent, status, wrong

    with ThreadPoolExecutor(threads) as pool:
        for number, sent, status, wrong in tqdm(
            pool.map(one, numbers), total=len(numbers), disable=quiet, unit=" requests"
        ):
            report.counts[sent.kind, status] += 1
            if sent.request is not None and sent.request.expected:
                report.fitting["rows compared"] += sent.request.expected[0][1][0]
            elif sent.request is not None and sent.request.expected == ():
                report.fitting["requests refused"] += 1
            if wrong:
                report.faults.append((number, sent, wrong))
    wrong = check_good(server)
    if wrong:
        report.faults.append((-1, Case("good", "POST", "/v1/models/m:predict"), wrong))
    return report


def table(report: Report) -> str:
    """Kinds down, statuses across."""
    statuses = sorted({status for _, status in report.counts})
    kinds = sorted({kind for kind, _ in report.counts})
    rows = []
    for kind in [*kinds, "all"]:
        counts = [
            sum(n for (k, s), n in report.counts.items() if s == status and kind in (k, "all"))
            for status in statuses
        ]
        rows.append([kind, *(count or "" for count in counts), sum(counts)])
    return markdown(["kind", *statuses, "all"], rows)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_server", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--only", type=int, help="the number of one case, to see it again")
    parser.add_argument("--threads", type=int, default=4, help="at a time (%(default)s)")
    parser.add_argument("--keep", type=Path, help="where exports are written, and found again")
    parser.add_argument("flags", nargs="*", help="further arguments of the server, after --")
    options = parser.parse_args()
    numbers = list(range(options.cases)) if options.only is None else [options.only]
    with server(*options.flags, exports=list(EXPORTS), keep=options.keep) as running:
        report = Report(collections.Counter(), [], collections.Counter())
        resident = [running.resident_mib()]
        for start in range(0, len(numbers), _PART):
            part = numbers[start : start + _PART]
            found = fuzz(running, options.seed, part, threads=options.threads)
            report.counts.update(found.counts)
            report.faults.extend(found.faults)
            report.fitting.update(found.fitting)
            resident.append(running.resident_mib())
    print(table(report))
    print(f"of those to exports: {dict(report.fitting)}")
    sizes = ", ".join(f"{size:.0f}" for size in resident)
    print(f"resident memory of the server before, and after each {_PART} requests, MiB: {sizes}")
    print(f"{len(report.faults)} of {len(numbers)} broke the contract (seed {options.seed})")
    for number, sent, wrong in report.faults[:50]:
        print(f"--only {number}: {sent.kind}, {sent.method} {sent.path[:100]}: {wrong}")
        print(f"    {sent.body[:200]!r}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
