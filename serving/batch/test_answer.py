"""Batch inference, on Beam's local runner and on Dask; make batch-test runs this."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import distributed
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the operations

from serving.batch import answer
from serving.batch.answer import Row, Shard, read, shards_of

ROOT = Path(__file__).parents[2]
EXPORT = ROOT / "build" / "batch" / "export"
DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
HOSTILE = [
    b"",
    b"The film was very good!",
    b"dull\r",
    b"\xff\xfe good \xc3",
    "日本語 🙂".encode(),
    b"x" * 10_000,
    b"word " * 600,
    b'"quoted", {"text": 1}',
    b"a\0b",
]


@pytest.fixture(scope="session")
def export():
    if not EXPORT.is_dir():
        pytest.skip("needs an export of a classifier in build/batch; make batch-test writes it")
    return EXPORT


@pytest.fixture(scope="session")
def alone(export):
    """Returns the export's answer to one text."""
    function = tf.saved_model.load(str(export / "1")).signatures["serving_default"]

    def ask(text):
        outputs = {n: v.numpy()[0] for n, v in function(text=tf.constant([text])).items()}
        return {"label": outputs["label"].decode(), "scores": outputs["scores"]}

    return ask


class Picky(tf.Module):
    """Two inputs; a row whose text is "bad" fails, and whatever runs beside it."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, "text"),
            tf.TensorSpec([None, None], tf.string, "choices"),
        ]
    )
    def answer(self, text, choices):
        good = tf.reduce_all(tf.not_equal(text, "bad"))
        with tf.control_dependencies([tf.debugging.Assert(good, ["a bad row"])]):
            chosen = tf.strings.reduce_join(choices, axis=1)
            return {"joined": tf.strings.join([text, chosen]), "pair": tf.stack([text, chosen], 1)}


@pytest.fixture(scope="session")
def picky(tmp_path_factory):
    base = tmp_path_factory.mktemp("picky")
    module = Picky()
    for version in ("2", "10"):
        tf.saved_model.save(module, str(base / version), {"serving_default": module.answer})
    return base


def arguments(model, inputs, output, *others):
    given = ("--model", model, "--input", inputs, "--output", output, *others)
    return [sys.executable, *map(str, (answer.__file__, *given))]


def run(*given):
    """The last line that it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments(*given)[1:])
        try:
            answer.main()
        except SystemExit as end:
            return end.code
    return said.getvalue().splitlines()[-1]


def run_alone(*given):
    """The same as a process of its own, as users start it."""
    done = subprocess.run(arguments(*given), capture_output=True, text=True, timeout=300)
    return (done.stdout or done.stderr).splitlines()[-1]


def lines(output, kind):
    files = sorted(output.glob(f"{kind}-*"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def decoded(text):
    return text.decode("utf-8", "replace")


# Shards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_bytes", [1, 2, 3, 7, 20, 10_000_000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_every_line_is_in_one_shard(tmp_path, shard_bytes, end):
    texts = [b"a", b"", b"bcd", b"\xff", b"", b"efghijk", b"l"]
    file = tmp_path / "texts.txt"
    content = b"\n".join(texts) + end
    file.write_bytes(content)
    shards = shards_of([(str(file), len(content))], shard_bytes)
    rows = [row for shard in shards for row in read(shard, ["text"])]
    expected = texts + [b""] * (len(end) - 1)
    assert [row.inputs["text"] for row in rows] == expected
    for row in rows:
        at = int(row.place.removeprefix("byte "))
        assert content[at:].startswith(row.inputs["text"])
        assert at == 0 or content[at - 1 : at] == b"\n"


def test_shards_are_numbered_over_all_files():
    shards = shards_of([("a.txt", 5), ("b.csv", 9), ("c.jsonl", 0), ("d.jsonl", 3)], 3)
    assert shards == [
        Shard(0, "a.txt", 0, 3),
        Shard(1, "a.txt", 3, 5),
        Shard(2, "b.csv", 0, 9),
        Shard(3, "d.jsonl", 0, 3),
    ]


def rows_of(path, content, names=("text",)):
    path.write_bytes(content)
    return read(Shard(0, str(path), 0, len(content)), list(names))


def test_jsonl(tmp_path):
    given = [
        '{"text": "a", "id": 7}',
        '"b"',
        r'{"text": "\ud800"}',
        "{",
        "",
        '{"id": 1}',
        '{"text": 3}',
        "[1]",
        "[" * 100_000,
    ]
    found = rows_of(tmp_path / "x.jsonl", "\n".join(given).encode())
    assert found[0] == Row({"text": "a", "id": 7}, {"text": b"a"}, "", "byte 0")
    assert found[1].inputs == {"text": b"b"}
    assert found[2].inputs == {"text": b"?"}
    assert [row.reason.split(":")[0] for row in found[3:]] == [
        "not JSON",
        "not JSON",
        "without 'text'",
        "int, expected text",
        "not an object, expected one with 'text'",
        "not JSON",
    ]


@pytest.mark.parametrize(("name", "line"), [("x.txt", b"a"), ("x.jsonl", b'{"text": "a"}')])
def test_a_byte_order_mark_is_no_text(tmp_path, name, line):
    found = rows_of(tmp_path / name, b"\n".join([b"\xef\xbb\xbf" + line, line]))
    assert [row.inputs["text"] for row in found] == [b"a", b"a"]


def test_csv(tmp_path):
    content = b'\xef\xbb\xbftext,id\n"two\nlines, and a comma",1\n\xff,2\nalone\na,b,c\n'
    found = rows_of(tmp_path / "x.csv", content)
    assert [row.inputs.get("text") for row in found] == [
        b"two\nlines, and a comma",
        b"\xff",
        None,
        None,
    ]
    assert found[1].given == {"text": "\ufffd", "id": "2"}
    assert [row.reason for row in found[2:]] == ["not 2 cells"] * 2
    assert found[0].place == "line 3"


def test_lines_of_text_for_two_inputs_fail(tmp_path):
    (row,) = rows_of(tmp_path / "x.txt", b"a\n", ["text", "text_pair"])
    assert row.reason == "one text, expected 'text', 'text_pair'"


# Answers ----------------------------------------------------------------------------------------


def test_batches_hold_so_many_rows_and_bytes():
    batches = []

    class Model:
        def __init__(self):
            self.signatures = {"s": self}

        def __call__(self, text):
            batches.append([len(each) for each in text.numpy()])
            return {"length": tf.strings.length(text)}

    sizes = [1, 50, 3, 3, 3, 200, 20, 20, 20]
    rows = [Row(size, {"text": b"x" * size}, "", "") for size in sizes]
    rows.insert(2, Row("?", {}, "not JSON", ""))
    step = answer.Answer("", "s", ["text"], batch_rows=3, batch_bytes=60, output="")
    found = step.answers(rows, Model())
    assert batches == [[1, 3, 3], [3, 20, 20], [20], [50], [200]]
    expected = [{"length": size} for size in sizes]
    assert found == [*expected[:2], "not JSON", *expected[2:]]


@pytest.mark.parametrize(
    "runner", [[], ["--direct_num_workers", "2", "--direct_running_mode", "multi_processing"]]
)
def test_an_export(export, alone, tmp_path, runner):
    texts = [*HOSTILE, *(b"good %d" % n for n in range(200))]
    (tmp_path / "texts.txt").write_bytes(b"\n".join(texts))
    output = tmp_path / "answers"
    told = run_alone(export, tmp_path / "*.txt", output, "--shard-bytes", "1000", *runner)
    assert told == f"{len(texts)} rows, {len(texts)} answers, 0 failed"
    found = lines(output, "answers")
    texts = [text.removesuffix(b"\r") for text in texts]
    assert [row["input"] for row in found] == [decoded(text) for text in texts]
    for text, row in zip(texts, found, strict=True):
        expected = alone(text)
        assert row["answer"]["label"] == expected["label"]
        np.testing.assert_allclose(row["answer"]["scores"], expected["scores"], atol=1e-5)
    assert len(lines(output, "done")) > 10


def test_rows_that_fail_do_so_alone(picky, tmp_path):
    rows = [
        {"text": "a", "choices": ["b", "c"], "id": 1},
        {"text": "bad", "choices": ["b", "c"]},
        {"text": "a", "choices": "no list"},
        {"text": "d", "choices": ["e"]},
        {"text": "f"},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    output = tmp_path / "out"
    assert run(picky, tmp_path / "in.jsonl", output) == "5 rows, 2 answers, 3 failed"
    assert lines(output, "answers") == [
        {"input": rows[0], "answer": {"joined": "abc", "pair": ["a", "bc"]}},
        {"input": rows[3], "answer": {"joined": "de", "pair": ["d", "e"]}},
    ]
    failed = lines(output, "failed")
    assert [row["input"] for row in failed] == [rows[1], rows[2], rows[4]]
    assert "a bad row" in failed[0]["reason"]
    assert failed[2]["reason"] == "without 'choices'"
    places = [int(row["place"].removeprefix("byte ")) for row in failed]
    content = (tmp_path / "in.jsonl").read_text("utf-8")
    assert [json.loads(content[at:].split("\n")[0]) for at in places] == [
        row["input"] for row in failed
    ]
    job = json.loads((output / "job.json").read_text("utf-8"))
    assert job["model"] == str(picky / "10")  # the latest, as numbers go


# Restarts ---------------------------------------------------------------------------------------


def test_a_killed_run_goes_on(export, alone, tmp_path):
    texts = [b"text %d is good" % n for n in range(20_000)]
    (tmp_path / "texts.txt").write_bytes(b"\n".join(texts))
    output = tmp_path / "answers"
    given = (export, tmp_path / "texts.txt", output, "--shard-bytes", "3000")
    with subprocess.Popen(arguments(*given), stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while len(list(output.glob("done-*"))) < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    total = len(shards_of([("texts.txt", sum(map(len, texts)) + len(texts) - 1)], 3000))
    before = {path: path.stat().st_mtime_ns for path in output.glob("done-*")}
    assert 3 <= len(before) < total
    # An interrupted shard may leave parts under temporary names, and answers without `done`.
    (output / "answers-00000.jsonl.0123.tmp").write_text("half a li")
    (output / f"answers-{total - 1:05}.jsonl").write_text('{"input": "of a try that died"}\n')

    assert run(*given) == "20,000 rows, 20,000 answers, 0 failed"
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())
    assert [row["input"] for row in lines(output, "answers")] == list(map(decoded, texts))
    assert not list(output.glob("*.tmp"))
    assert len(list(output.iterdir())) == 3 * total + 1
    for row in lines(output, "answers")[::1999]:
        expected = alone(row["input"].encode())
        np.testing.assert_allclose(row["answer"]["scores"], expected["scores"], atol=1e-5)
    assert run(*given) == "20,000 rows, 20,000 answers, 0 failed"  # nothing left to do


def test_a_worker_of_dask_is_killed(export, tmp_path):
    """Its shards are answered by the other one: the same bytes as of the local runner."""
    texts = (f"text {n} is good" for n in range(4000))
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    one, two = tmp_path / "one", tmp_path / "two"
    given = (export, tmp_path / "texts.txt", one, "--shard-bytes", "3000")
    told = run(*given)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        victim = cluster.workers[0].pid  # which its nanny starts again
        given = (export, tmp_path / "texts.txt", two, "--shard-bytes", "3000", "--runner", DASK)
        given += ("--dask_client_address", cluster.scheduler_address, "--dask_partition_size", 2)
        with subprocess.Popen(arguments(*given), stdout=subprocess.PIPE, text=True) as process:
            while len(list(two.glob("done-*"))) < 3:
                assert process.poll() is None
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
            before = {path: path.stat().st_mtime_ns for path in two.glob("done-*")}
            said = process.stdout.read().splitlines()[-1]
    assert said == told == "4,000 rows, 4,000 answers, 0 failed"
    content = {path.name: path.read_bytes() for path in one.iterdir()}
    assert {path.name: path.read_bytes() for path in two.iterdir()} == content
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())


def test_a_shard_that_a_runner_leaves_out_is_an_error(picky, tmp_path, monkeypatch):
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a", "choices": ["b"]}\n' * 2)
    monkeypatch.setattr(answer.Answer, "process", lambda self, element: None)
    with pytest.raises(RuntimeError, match="0 of 1 shards are done"):
        run(picky, file, tmp_path / "out")


def test_what_does_not_fit_is_refused(picky, tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a", "choices": ["b"]}')
    output = tmp_path / "out"
    assert run(picky, file, output) == "1 rows, 1 answers, 0 failed"
    assert "its 'shard_bytes' is 262144, expected 7" in run(picky, file, output, "--shard-bytes", 7)
    file.write_text('{"text": "aa", "choices": ["b"]}')
    assert "contains the answers of another job: its 'files' is" in run(picky, file, output)
    new = tmp_path / "new"
    assert "no file matches" in run(picky, tmp_path / "none*.txt", new)
    assert "ends in one of '.txt', '.jsonl', '.csv'" in run(picky, picky / "2" / "*.pb", new)
    assert "contains no export" in run(tmp_path, file, new)
    told = run(picky, file, new, "--signature", "x")
    assert "no signature 'x', expected one of" in told
    assert "serving_default" in told
    assert not new.exists()
