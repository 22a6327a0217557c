"""Answers files of texts with an export: Apache Beam's RunInference, on any of Beam's runners.

    make batch-env
    build/batch/bin/python serving/batch/answer.py \\
        --model exports/sentiment --input 'texts/*.txt' --output answers

Inputs, by their names: `.txt`, a text on each line; `.jsonl`, on each line an object with the
export's inputs (`{"text": …}`; what else is in it is handed through) or a text; `.csv`, with a
header that names the inputs. Outputs, for each shard: `answers-00000.jsonl` with `{"input": …,
"answer": …}` in the order of the input, `failed-00000.jsonl` with the rows that have no answer,
why, and where they stand, and `done-00000.json` with their numbers.

The element that goes through the pipeline is a shard: a range of bytes of an input. Each is read,
answered and written in one step, under temporary names until it is whole; so memory is bounded by
a shard, a run that was killed goes on with the shards that are not done, and a shard that a runner
tries twice is there once. Rows of a shard go by length, so that a batch has little padding.

One file on purpose: runners that pickle it need no package on their workers, only what
requirements.txt lists.
"""

from __future__ import annotations

import argparse
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
from apache_beam.ml.inference.base import ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions

KINDS = (".txt", ".jsonl", ".csv")
NUMBERS = ("rows", "answers", "failed")


class Shard(NamedTuple):
    """The lines of a file that begin in `begin` to `end`; all of a CSV: its rows may span lines."""

    number: int
    file: str
    begin: int
    end: int


class Row(NamedTuple):
    """One row of an input.

    Fields:
        given: as it stood there, for whoever reads the output.
        inputs: name to text or list of texts, in bytes; empty for a row that is not valid.
        reason: why it is not valid.
        place: where it stands in its file.
    """

    given: Any
    inputs: dict[str, Any]
    reason: str
    place: str


# What goes from step to step is made of Python's own types: runners send it to other processes,
# where the classes of a script have no module.
Fields = tuple[int, str, int, int]  # of a shard
Written = tuple[int, bytes, bytes, dict[str, int]]  # its number; answers, failures; how many


# Inputs -----------------------------------------------------------------------------------------


def shards_of(files: Iterable[tuple[str, int]], shard_bytes: int) -> list[Shard]:
    """The same shards for the same (path, size) each time."""
    ranges = []
    for file, size in files:
        step = max(size, 1) if file.endswith(".csv") else shard_bytes
        ranges += [(file, begin, min(begin + step, size)) for begin in range(0, size, step)]
    return [Shard(number, *each) for number, each in enumerate(ranges)]


def read(shard: Shard, names: Sequence[str]) -> list[Row]:
    """The shard's rows, with the inputs that the model has these names for."""
    with FileSystems.open(shard.file, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        if shard.file.endswith(".csv"):
            return list(_csv_rows(file, names))
        parse = _text_row if shard.file.endswith(".txt") else _json_row
        return [parse(line, names, f"byte {at}") for at, line in _lines(file, shard)]


def _lines(file: Any, shard: Shard) -> Iterator[tuple[int, bytes]]:
    at = shard.begin
    if at:  # the line that runs up to here belongs to the shard before
        file.seek(at - 1)
        at += len(file.readline()) - 1
    while at < shard.end and (line := file.readline()):
        yield at, line.removesuffix(b"\n").removesuffix(b"\r")
        at += len(line)


def _text_row(line: bytes, names: Sequence[str], place: str) -> Row:
    reason = "" if len(names) == 1 else f"one text, expected {_listed(names)}"
    return Row(line.decode("utf-8", "replace"), {names[0]: line}, reason, place)


def _json_row(line: bytes, names: Sequence[str], place: str) -> Row:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(line.decode("utf-8", "replace"), {}, f"not JSON: {error}", place)
    named = {names[0]: given} if isinstance(given, str) and len(names) == 1 else given
    if not isinstance(named, dict):
        return Row(given, {}, f"no object, expected one with {_listed(names)}", place)
    return _row(given, named, names, place)


def _csv_rows(file: Any, names: Sequence[str]) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    # surrogateescape keeps bytes that are not UTF-8 as they are until the model has them.
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    rows = csv.DictReader(text)
    for named in rows:
        place = f"line {rows.line_num}"
        cells = {
            name: cell.encode("utf-8", "surrogateescape")
            for name, cell in named.items()
            if name is not None and cell is not None
        }
        given = {name: cell.decode("utf-8", "replace") for name, cell in cells.items()}
        if len(cells) < len(named):
            yield Row(given, {}, f"not {len(rows.fieldnames or [])} cells", place)
        else:
            yield _row(given, cells, names, place)


def _row(given: Any, named: dict[str, Any], names: Sequence[str], place: str) -> Row:
    if missing := [name for name in names if name not in named]:
        return Row(given, {}, f"without {_listed(missing)}", place)
    try:
        return Row(given, {name: _encoded(named[name]) for name in names}, "", place)
    except TypeError as error:
        return Row(given, {}, str(error), place)


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")  # JSON can say half of a pair of surrogates
    if isinstance(value, list):
        return [_encoded(each) for each in value]
    raise TypeError(f"{type(value).__name__}, expected text")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# The model --------------------------------------------------------------------------------------


class ExportHandler(ModelHandler[Fields, Written, Any]):
    """Runs one signature of a SavedModel whose inputs are strings on shards.

    Beam's own handler for TensorFlow loads Keras models and stacks arrays of one shape.

    Args:
        model: a version directory.
        signature: of the export.
        names: of its inputs.
        batch_rows: most rows of a batch.
        batch_bytes: most bytes of a batch, padded: its rows times its longest row.
    """

    def __init__(
        self, model: str, signature: str, names: Sequence[str], batch_rows: int, batch_bytes: int
    ) -> None:
        super().__init__(min_batch_size=1, max_batch_size=1)  # an element is a shard already
        self._model = model
        self._signature = signature
        self._names = names
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes

    def load_model(self) -> Any:
        """The SavedModel."""
        import tensorflow as tf
        import tensorflow_text  # noqa: F401, which brings the operations

        return tf.saved_model.load(self._model)

    def run_inference(
        self, batch: Sequence[Fields], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterator[Written]:
        """What is to be written of each shard."""
        for fields in batch:
            shard = Shard(*fields)
            rows = read(shard, self._names)
            yield _encode(shard, rows, self.answers(rows, model))

    def get_num_bytes(self, batch: Sequence[Fields]) -> int:
        """For Beam's metrics."""
        return sum(end - begin for _, _, begin, end in batch)

    def answers(self, rows: Sequence[Row], model: Any) -> list[dict[str, Any] | str]:
        """The answer to each row, or why there is none."""
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
            arrays = {name: value.numpy() for name, value in outputs.items()}
        except (tf.errors.OpError, TypeError, ValueError) as error:
            if len(rows) > 1:  # one row's fault is not the others'
                return [answer for row in rows for answer in self._run([row], model)]
            return [f"{type(error).__name__}: {error}"[:1000]]
        return [
            {name: _plain(value[i]) for name, value in arrays.items()} for i in range(len(rows))
        ]


def inputs_of(model: str, signature: str) -> list[str]:
    """Names of the inputs of a version directory's signature.

    Raises:
        ValueError: when there is no such signature, or its inputs are not strings.
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
    """Bytes of its inputs."""
    return sum(map(_size, row.inputs.values()))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else sum(map(_size, value))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


# Outputs ----------------------------------------------------------------------------------------


def _encode(shard: Shard, rows: Sequence[Row], answers: Sequence[dict[str, Any] | str]) -> Written:
    lines, failed = [], []
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, str):
            where = {"file": shard.file, "place": row.place, "reason": answer}
            failed.append(where | {"input": row.given})
        else:
            lines.append({"input": row.given, "answer": answer})
    numbers = {"rows": len(rows), "answers": len(lines), "failed": len(failed)}
    return shard.number, _json_lines(lines), _json_lines(failed), numbers


def _json_lines(records: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


class Write(beam.DoFn):
    """Writes a shard: what `done` lies beside is whole."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._counters = {name: Metrics.counter("answer", name) for name in NUMBERS}

    def process(self, element: Written) -> None:
        """Writes the answers, the failures, and last how many they are."""
        number, answers, failed, numbers = element
        _write(self._output, f"answers-{number:05}.jsonl", answers)
        _write(self._output, f"failed-{number:05}.jsonl", failed)
        _write(self._output, f"done-{number:05}.json", _json_lines([numbers]))
        for name in NUMBERS:
            self._counters[name].inc(numbers[name])


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
    """The directory of the latest version under a base path; a version directory is itself."""
    if _matching(FileSystems.join(model, "saved_model.pb")):
        return model
    found = _matching(FileSystems.join(model, "*", "saved_model.pb"))
    folders = [FileSystems.split(each.path)[0] for each in found]
    versions = [f for f in folders if FileSystems.split(f)[1].isdecimal()]
    if not versions:
        raise ValueError(f"{model} holds no export, expected saved_model.pb or 1/, 2/, …")
    return max(versions, key=lambda folder: int(FileSystems.split(folder)[1]))


def _begin(options: argparse.Namespace, model: str) -> list[Shard]:
    """The job's shards, after its description was written or compared with what is there."""
    files = [(f.path, f.size_in_bytes) for each in options.input for f in _matching(each)]
    if wrong := [path for path, _ in files if not path.endswith(KINDS)]:
        raise ValueError(f"{wrong[0]}: expected a name that ends in one of {_listed(KINDS)}")
    if not files:
        raise ValueError(f"no file matches {_listed(options.input)}")
    # It has the checksums of all weights.
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
                    f"{options.output} has another job's answers: its {name!r} is "
                    f"{before.get(name)!r}, expected {value!r}; choose another directory"
                )
        leftovers = [found.path for found in _matching(FileSystems.join(options.output, "*.tmp"))]
        if leftovers:
            FileSystems.delete(leftovers)
    else:
        if not FileSystems.exists(options.output):
            FileSystems.mkdirs(options.output)
        _write(options.output, "job.json", _json_lines([job]))
    return shards_of(files, options.shard_bytes)


def run(options: argparse.Namespace, beam_options: PipelineOptions) -> dict[str, int]:
    """Answers what is not yet answered; returns the numbers of all shards together.

    Raises:
        ValueError: for inputs, an output or a model that do not fit.
    """
    model = version_of(options.model)
    names = inputs_of(model, options.signature)
    shards = _begin(options, model)
    pattern = FileSystems.join(options.output, "done-*.json")
    done = {FileSystems.split(found.path)[1] for found in _matching(pattern)}
    todo = [shard for shard in shards if f"done-{shard.number:05}.json" not in done]
    print(f"{len(shards)} shards, {len(shards) - len(todo)} of them done", flush=True)
    handler = ExportHandler(
        model, options.signature, names, options.batch_rows, options.batch_bytes
    )
    if todo:
        with beam.Pipeline(options=beam_options) as pipeline:
            _ = (
                pipeline
                | "shards" >> beam.Create([tuple(shard) for shard in todo], reshuffle=False)
                | "spread" >> beam.Reshuffle()
                | "answer" >> RunInference(handler)
                | "write" >> beam.ParDo(Write(options.output))
            )
    numbers = [json.loads(_read(found.path)) for found in _matching(pattern)]
    return {name: sum(each[name] for each in numbers) for name in NUMBERS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="All other options are Beam's: --runner FlinkRunner, --runner DataflowRunner, …",
    )
    parser.add_argument("--model", required=True, help="what `bertfam export` wrote, or a version")
    parser.add_argument("--input", required=True, nargs="+", help="files or patterns of files")
    parser.add_argument("--output", required=True, help="a directory of this job's own")
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
