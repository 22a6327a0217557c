"""Batch inference: runs an export on files of texts with Apache Beam, on any of its runners.

    make batch-env
    build/batch/bin/python serving/batch/answer.py \\
        --model exports/sentiment --input 'texts/*.txt' --output answers

Input formats, by file name: `.txt` has one text per line; `.jsonl` has one text, or one object with
the export's inputs, per line (`{"text": …}`; other keys are copied to the output); `.csv` has a
header with the names of the inputs. Output, for each shard: `answers-00000.jsonl` with `{"input":
…, "answer": …}` in input order, `failed-00000.jsonl` with the rows that have no answer, their
position and the reason, and `done-00000.json` with the numbers of both.

The elements of the pipeline are shards: byte ranges of input files. A shard is read, answered and
written in one step, under temporary names until it is complete. So memory is bounded by the size of
a shard, a killed run resumes with the shards that are not done, and a shard that a runner retries
appears once. The rows of a shard are batched by length, which minimizes padding.

This is a single file on purpose: workers of runners that pickle it need only the packages in
requirements.txt.
"""

from __future__ import annotations

import argparse
import codecs
import csv
import hashlib
import io
import json
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.shared import Shared

KINDS = (".txt", ".jsonl", ".csv")
NUMBERS = ("rows", "answers", "failed")


class Shard(NamedTuple):
    """The lines of a file that start at the bytes `begin` to `end`; a CSV is a single shard."""

    number: int
    file: str
    begin: int
    end: int


class Row(NamedTuple):
    """One row of an input.

    Fields:
        given: the original row, for the output.
        inputs: input name to text or list of texts, as bytes; empty if the row is invalid.
        reason: why the row is invalid; "" otherwise.
        place: its position in the file.
    """

    given: Any
    inputs: dict[str, Any]
    reason: str
    place: str


# Runners send elements to other processes, which cannot unpickle the classes of a script. So
# elements consist of built-in types.
Fields = tuple[int, str, int, int]  # a Shard's


# Inputs -----------------------------------------------------------------------------------------


def shards_of(files: Iterable[tuple[str, int]], shard_bytes: int) -> list[Shard]:
    """Splits files, (path, size), into shards; deterministic."""
    ranges = []
    for file, size in files:
        step = max(size, 1) if file.endswith(".csv") else shard_bytes
        ranges += [(file, begin, min(begin + step, size)) for begin in range(0, size, step)]
    return [Shard(number, *bounds) for number, bounds in enumerate(ranges)]


def read(shard: Shard, names: Sequence[str]) -> list[Row]:
    """Reads the rows of a shard; `names` are the names of the model's inputs."""
    with FileSystems.open(shard.file, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        if shard.file.endswith(".csv"):
            return list(_csv_rows(file, names))
        parse = _text_row if shard.file.endswith(".txt") else _json_row
        return [parse(line, names, f"byte {at}") for at, line in _lines(file, shard)]


def _lines(file: Any, shard: Shard) -> Iterator[tuple[int, bytes]]:
    at = shard.begin
    if at:  # a line that started before belongs to the previous shard
        file.seek(at - 1)
        at += len(file.readline()) - 1
    while at < shard.end and (line := file.readline()):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        yield at, text if at else text.removeprefix(codecs.BOM_UTF8)
        at += len(line)


def _text_row(line: bytes, names: Sequence[str], place: str) -> Row:
    reason = "" if len(names) == 1 else f"one text, expected {_listed(names)}"
    return Row(line.decode("utf-8", "replace"), {names[0]: line}, reason, place)


def _json_row(line: bytes, names: Sequence[str], place: str) -> Row:
    try:
        example = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(line.decode("utf-8", "replace"), {}, f"not JSON: {error}", place)
    fields = {names[0]: example} if isinstance(example, str) and len(names) == 1 else example
    if not isinstance(fields, dict):
        return Row(example, {}, f"not an object, expected one with {_listed(names)}", place)
    return _row(example, fields, names, place)


def _csv_rows(file: Any, names: Sequence[str]) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    # surrogateescape passes bytes that are not UTF-8 to the model unchanged.
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    rows = csv.DictReader(text)
    for fields in rows:
        place = f"line {rows.line_num}"
        cells = {
            name: cell.encode("utf-8", "surrogateescape")
            for name, cell in fields.items()
            if name is not None and cell is not None
        }
        example = {name: cell.decode("utf-8", "replace") for name, cell in cells.items()}
        if len(cells) < len(fields):
            yield Row(example, {}, f"not {len(rows.fieldnames or [])} cells", place)
        else:
            yield _row(example, cells, names, place)


def _row(example: Any, fields: dict[str, Any], names: Sequence[str], place: str) -> Row:
    if missing := [name for name in names if name not in fields]:
        return Row(example, {}, f"without {_listed(missing)}", place)
    try:
        return Row(example, {name: _encoded(fields[name]) for name in names}, "", place)
    except TypeError as error:
        return Row(example, {}, str(error), place)


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")  # JSON allows lone surrogates
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    raise TypeError(f"{type(value).__name__}, expected text")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# The model --------------------------------------------------------------------------------------


class Answer(beam.DoFn):
    """Reads, answers and writes a shard; its output is complete if the `done` file exists.

    Not with Beam's RunInference, which batches elements (here shards): Beam's runner for Dask loses
    what `finish_bundle` returns, which would be the last batch of each bundle.

    Args:
        model: a version directory.
        signature: the name of a signature whose inputs are strings.
        names: the names of its inputs.
        batch_rows: the largest number of rows in a batch.
        batch_bytes: the largest size of a batch including padding: rows times the longest row.
        output: a directory.
    """

    def __init__(
        self,
        model: str,
        signature: str,
        names: Sequence[str],
        batch_rows: int,
        batch_bytes: int,
        output: str,
    ) -> None:
        self._model = model
        self._signature = signature
        self._names = names
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._output = output
        self._counters = {name: Metrics.counter("answer", name) for name in NUMBERS}
        self._shared = Shared()  # one model in each process

    def setup(self) -> None:
        """Loads the SavedModel."""

        def load() -> Any:
            import tensorflow as tf
            import tensorflow_text  # noqa: F401, registers the operations

            return tf.saved_model.load(self._model)

        self._loaded = self._shared.acquire(load)

    def process(self, element: Fields) -> None:
        """Writes the answers, the failures, and finally the counts."""
        shard = Shard(*element)
        done = f"done-{shard.number:05}.json"
        # If a worker dies, Dask repeats all that it has done.
        if FileSystems.exists(FileSystems.join(self._output, done)):
            return
        rows = read(shard, self._names)
        answers, failed, numbers = _encode(shard, rows, self.answers(rows, self._loaded))
        _write(self._output, f"answers-{shard.number:05}.jsonl", answers)
        _write(self._output, f"failed-{shard.number:05}.jsonl", failed)
        _write(self._output, done, _json_lines([numbers]))
        for name, counter in self._counters.items():
            counter.inc(numbers[name])

    def answers(self, rows: Sequence[Row], model: Any) -> list[dict[str, Any] | str]:
        """The answer to each row, or the reason why there is none."""
        found: list[dict[str, Any] | str] = [row.reason for row in rows]
        todo = [i for i, row in enumerate(rows) if not row.reason]
        todo.sort(key=lambda i: size(rows[i]))
        while todo:
            count = 1
            while count < min(self._batch_rows, len(todo)) and (
                (count + 1) * size(rows[todo[count]]) <= self._batch_bytes
            ):
                count += 1
            batch, todo = todo[:count], todo[count:]
            for place, answer in zip(
                batch, self._run([rows[i] for i in batch], model), strict=True
            ):
                found[place] = answer
        return found

    def _run(self, rows: Sequence[Row], model: Any) -> list[dict[str, Any] | str]:
        import tensorflow as tf

        try:
            columns = {
                name: tf.constant([row.inputs[name] for row in rows], tf.string)
                for name in self._names
            }
            outputs = model.signatures[self._signature](**columns)
            # Their order in a loaded signature is not the same in all processes.
            arrays = {name: outputs[name].numpy() for name in sorted(outputs)}
        except (tf.errors.OpError, TypeError, ValueError) as error:
            if len(rows) > 1:  # finds the rows that fail
                return [answer for row in rows for answer in self._run([row], model)]
            return [f"{type(error).__name__}: {error}"[:1000]]
        return [
            {name: _plain(value[i]) for name, value in arrays.items()} for i in range(len(rows))
        ]


def inputs_of(model: str, signature: str) -> list[str]:
    """The names of a signature's inputs.

    Args:
        model: a version directory.
        signature: the signature's name.

    Raises:
        ValueError: the signature does not exist, or its inputs are not strings.
    """
    from tensorflow.core.framework import types_pb2
    from tensorflow.core.protobuf import saved_model_pb2

    content = _read(FileSystems.join(model, "saved_model.pb"))
    (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    if signature not in graph.signature_def:
        known = _listed(sorted(graph.signature_def))
        raise ValueError(f"{model} has no signature {signature!r}, expected one of {known}")
    inputs = graph.signature_def[signature].inputs
    wrong = [name for name, info in inputs.items() if info.dtype != types_pb2.DT_STRING]
    if wrong or not inputs:
        raise ValueError(f"inputs of {signature!r}: {_listed(sorted(inputs))}, expected strings")
    return sorted(inputs)


def size(row: Row) -> int:
    """The size of a row's inputs in bytes."""
    return sum(map(_size, row.inputs.values()))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else sum(map(_size, value))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


# Outputs ----------------------------------------------------------------------------------------


def _encode(
    shard: Shard, rows: Sequence[Row], answers: Sequence[dict[str, Any] | str]
) -> tuple[bytes, bytes, dict[str, int]]:
    lines, failed = [], []
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, str):
            where = {"file": shard.file, "place": row.place, "reason": answer}
            failed.append(where | {"input": row.given})
        else:
            lines.append({"input": row.given, "answer": answer})
    numbers = {"rows": len(rows), "answers": len(lines), "failed": len(failed)}
    return _json_lines(lines), _json_lines(failed), numbers


def _json_lines(records: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _write(directory: str, name: str, content: bytes) -> None:
    path = FileSystems.join(directory, name)
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with FileSystems.create(temporary, "application/json", CompressionTypes.UNCOMPRESSED) as file:
        file.write(content)
    FileSystems.rename([temporary], [path])


def _matching(pattern: str) -> list[Any]:
    (match,) = FileSystems.match([pattern])
    return sorted(match.metadata_list, key=lambda found: found.path)


def _read(path: str) -> bytes:
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        return file.read()


# The job ----------------------------------------------------------------------------------------


def version_of(model: str) -> str:
    """The latest version under a base path; a version directory is returned as it is."""
    if _matching(FileSystems.join(model, "saved_model.pb")):
        return model
    models = _matching(FileSystems.join(model, "*", "saved_model.pb"))
    folders = [FileSystems.split(file.path)[0] for file in models]
    versions = [f for f in folders if FileSystems.split(f)[1].isdecimal()]
    if not versions:
        raise ValueError(f"{model} contains no export, expected saved_model.pb or 1/, 2/, …")
    return max(versions, key=lambda folder: int(FileSystems.split(folder)[1]))


def _begin(options: argparse.Namespace, model: str) -> list[Shard]:
    """The job's shards; writes the job's description, or compares it with the existing one."""
    files = [(f.path, f.size_in_bytes) for pattern in options.input for f in _matching(pattern)]
    if wrong := [path for path, _ in files if not path.endswith(KINDS)]:
        raise ValueError(f"{wrong[0]}: expected a name that ends in one of {_listed(KINDS)}")
    if not files:
        raise ValueError(f"no file matches {_listed(options.input)}")
    # The index contains checksums of all weights.
    weights = _read(FileSystems.join(model, "variables", "variables.index"))
    job = {
        "model": model,
        "weights": hashlib.sha256(weights).hexdigest(),
        "signature": options.signature,
        "shard_bytes": options.shard_bytes,
        "files": [list(file) for file in files],
    }
    path = FileSystems.join(options.output, "job.json")
    if FileSystems.exists(path):
        before = json.loads(_read(path))
        for name, value in job.items():
            if before.get(name) != value:
                raise ValueError(
                    f"{options.output} contains the answers of another job: its {name!r} is "
                    f"{before.get(name)!r}, expected {value!r}; choose another directory"
                )
    else:
        if not FileSystems.exists(options.output):
            FileSystems.mkdirs(options.output)
        _write(options.output, "job.json", _json_lines([job]))
    return shards_of(files, options.shard_bytes)


def _remove_leftovers(output: str) -> None:
    """Removes what killed workers left under temporary names."""
    if leftovers := [file.path for file in _matching(FileSystems.join(output, "*.tmp"))]:
        FileSystems.delete(leftovers)


def run(options: argparse.Namespace, beam_options: PipelineOptions) -> dict[str, int]:
    """Answers the shards that are not done; returns the counts of all shards together.

    Raises:
        ValueError: the inputs, the output directory or the model are not usable.
        RuntimeError: the runner has left out shards.
    """
    model = version_of(options.model)
    names = inputs_of(model, options.signature)
    shards = _begin(options, model)
    pattern = FileSystems.join(options.output, "done-*.json")
    done = {FileSystems.split(file.path)[1] for file in _matching(pattern)}
    todo = [shard for shard in shards if f"done-{shard.number:05}.json" not in done]
    print(f"{len(shards)} shards, {len(shards) - len(todo)} of them done", flush=True)
    answer = Answer(
        model, options.signature, names, options.batch_rows, options.batch_bytes, options.output
    )
    _remove_leftovers(options.output)
    if todo:
        with beam.Pipeline(options=beam_options) as pipeline:
            _ = (
                pipeline
                | "shards" >> beam.Create([tuple(shard) for shard in todo], reshuffle=False)
                | "spread" >> beam.Reshuffle()
                | "answer" >> beam.ParDo(answer)
            )
        _remove_leftovers(options.output)
    numbers = [json.loads(_read(file.path)) for file in _matching(pattern)]
    if len(numbers) < len(shards):
        raise RuntimeError(f"{len(numbers)} of {len(shards)} shards are done; run it once more")
    return {name: sum(counts[name] for counts in numbers) for name in NUMBERS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Other options are passed to Beam: --runner FlinkRunner, --runner DataflowRunner, …",
    )
    parser.add_argument(
        "--model",
        required=True,
        help="the output directory of `bertfam export`, or a version in it",
    )
    parser.add_argument("--input", required=True, nargs="+", help="files or glob patterns")
    parser.add_argument("--output", required=True, help="a directory for this job only")
    parser.add_argument("--signature", default="serving_default", help="(%(default)s)")
    parser.add_argument("--shard-bytes", type=int, default=1 << 18, help="(%(default)s)")
    parser.add_argument("--batch-rows", type=int, default=64, help="(%(default)s)")
    parser.add_argument("--batch-bytes", type=int, default=1 << 16, help="(%(default)s)")
    options, others = parser.parse_known_args()
    try:
        numbers = run(options, PipelineOptions(others))
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(", ".join(f"{count:,} {name}" for name, count in numbers.items()))


if __name__ == "__main__":
    main()
