"""Compares plans with runs that were published, and with runs on this machine.

    python -m tools.check_plan --report tools/results/plan.md

Published runs are planned with the recipes in ``configs/``, changed as the row says. Runs on this
machine train a small BERT on a book of the data folder (``python -m tools.fetch_data``), each in a
process of its own, on one thread; seconds are of CPU time, so other work does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools import texts

_BERT = "configs/bert/pretrain.yaml"
_NVIDIA = (
    "github.com/NVIDIA/DeepLearningExamples, TensorFlow2/LanguageModeling/BERT/README.md, "
    "commit 49e23b4"
)
_SHARE = 0.4
_LARGE = ("model.size=large", "objectives={mlm: 1.0, nsp: 1.0}", "train.optimizer=lamb")


class Published(NamedTuple):
    """A published run.

    Fields:
        name, source: for the table.
        recipe, changes, devices: as it is planned; the devices with their published number and
            memory, and the peak of their data sheets.
        hours, cost: published; None for no cost.
    """

    name: str
    source: str
    recipe: str
    changes: tuple[str, ...]
    devices: dict[str, Any]
    hours: float
    cost: float | None = None


def _phases(first: tuple[int, int], second: tuple[int, int]) -> str:
    """Stages of BERT-large with LAMB: batch sizes and steps."""
    found = [
        {"length": length, "steps": steps, "batch_size": size}
        for length, (size, steps) in zip((128, 512), (first, second), strict=True)
    ]
    return f"stages={json.dumps(found)}"


# As many sequences as 7,506 steps of 61,440 and 1,668 of 30,720, the script's defaults.
_A100 = {"count": 256, "peak": 312e12, "memory": 80, "dtype": "mixed_float16"}
_MOSAIC = Published(
    "BERT-base, 70,000 steps of 4,096, 8 A100",
    "arXiv 2312.17482, figure 1 and section 3; github.com/mosaicml/examples, "
    "examples/benchmarks/bert/README.md; examples have padding, which is counted here",
    _BERT,
    (
        "stages=[]",
        "train.steps=70000",
        "train.epochs=1",
        "train.batch_size=4096",
        "data.format=full_sentences",
        "objectives={mlm: 1.0}",
    ),
    {
        "count": 8,
        "peak": 312e12,
        "memory": 80,
        "dtype": "mixed_bfloat16",
        "price": 2.21,
        "accumulation": 4,
    },
    hours=11.5,
)
_PUBLISHED = [
    Published(
        "BERT-large, LAMB, 256 A100, mixed precision",
        _NVIDIA,
        _BERT,
        (*_LARGE, _phases((79872, 5774), (10240, 5004))),
        _A100,
        hours=2.02,
    ),
    Published(
        "BERT-large, LAMB, 256 A100, TF32",
        _NVIDIA,
        _BERT,
        (*_LARGE, _phases((45056, 10236), (5632, 9098))),
        {**_A100, "peak": 156e12, "dtype": "float32"},
        hours=3.57,
    ),
    Published(
        "BERT-large, LAMB, 512 V100, mixed precision",
        _NVIDIA,
        _BERT,
        (*_LARGE, _phases((28672, 16084), (5120, 10008))),
        {"count": 512, "peak": 125e12, "memory": 32, "dtype": "mixed_float16"},
        hours=2.67,
    ),
    Published(
        "BERT-large, LAMB, 512 V100, float32",
        _NVIDIA,
        _BERT,
        (*_LARGE, _phases((16384, 28148), (2048, 25020))),
        {"count": 512, "peak": 15.7e12, "memory": 32},
        hours=8.02,
    ),
    _MOSAIC,
    Published(
        "ELECTRA-small, a million steps, 1 V100",
        "github.com/google-research/electra, README.md (slightly over 4 days; float32)",
        "configs/electra/pretrain.yaml",
        (),
        {"count": 1, "peak": 15.7e12, "memory": 16},
        hours=96,
    ),
    Published(
        "RoBERTa-large, 100,000 steps of 8,192, 1,024 V100",
        "arXiv 1907.11692, section 5 (about one day)",
        "configs/roberta/pretrain.yaml",
        ("model.size=large", "train.steps=100000", "train.epochs=1"),
        {"count": 1024, "peak": 125e12, "memory": 32, "dtype": "mixed_float16"},
        hours=24,
    ),
    Published(
        "BERT-base, 16 chips of TPU v2",
        "arXiv 1810.04805, appendix A.2 (4 days); cost: a lecture's slides, which cite "
        "syncedreview.com/2019/06/27/the-staggering-cost-of-training-sota-ai-models",
        _BERT,
        (),
        {"count": 16, "peak": 45e12, "memory": 16, "dtype": "mixed_bfloat16", "price": 4.5 / 4},
        hours=96,
        cost=500,
    ),
    Published(
        "BERT-large, 64 chips of TPU v2",
        "arXiv 1810.04805, appendix A.2 (4 days); cost and prices: the same",
        _BERT,
        ("model.size=large",),
        {"count": 64, "peak": 45e12, "memory": 16, "dtype": "mixed_bfloat16", "price": 4.5 / 4},
        hours=96,
        cost=7000,
    ),
    Published(
        "XLNet-large, batch 2,048, 512 chips of TPU v3",
        "arXiv 1906.08237v1, section 3.1 (2.5 days), cost and price: the same article",
        "configs/xlnet/pretrain.yaml",
        ("train.batch_size=2048",),
        {"count": 512, "peak": 123e12, "memory": 32, "dtype": "mixed_bfloat16", "price": 2.0},
        hours=60,
        cost=61440,
    ),
]  # fmt: skip
# The largest batches of BERT-large in the same README: (length, dtype, memory, batch that fits,
# batch that runs out of memory or None).
_BATCHES = [
    (128, "mixed_float16", 80, 312, None),
    (512, "mixed_float16", 80, 40, None),
    (128, "float32", 80, 176, 312),
    (512, "float32", 80, 22, 40),
    (128, "mixed_float16", 32, 60, None),
    (512, "mixed_float16", 32, 10, None),
    (128, "float32", 32, 32, 60),
    (512, "float32", 32, 6, 10),
]


class Run(NamedTuple):
    """A run on this machine: a BERT with a vocabulary of 30,522."""

    hidden_size: int
    num_layers: int
    length: int
    batch_size: int
    steps: int


_RUNS = [Run(128, 3, 64, 16, 50), Run(256, 4, 128, 32, 10), Run(256, 4, 128, 64, 10)]


def _recipe(run: Run, text: Path) -> Any:
    from bertfam_tf.recipes.schema import (
        CorpusConfig,
        MaskingConfig,
        NewModelConfig,
        PretrainRecipe,
    )
    from bertfam_tf.training.settings import TrainConfig

    width = run.hidden_size
    model = {"hidden_size": width, "num_layers": run.num_layers, "num_heads": max(width // 64, 1),
             "intermediate_size": 4 * width, "max_positions": run.length}  # fmt: skip
    vocabulary = str(texts.DATA / "vocab" / "bert-base-uncased")
    return PretrainRecipe(
        str(text.parent / "run"),
        NewModelConfig("bert", "tiny", vocabulary, model),
        CorpusConfig(
            [str(text)], [str(text)], "full_sentences", run.length, documents="file", shuffle=100
        ),
        {"mlm": 1.0},
        MaskingConfig(),
        train=TrainConfig(batch_size=run.batch_size, steps=run.steps, epochs=1),
    )


def _measure(run: Run, text: Path) -> dict[str, float]:
    """Trains; returns bytes at the peak and CPU seconds of a step."""
    import keras

    _one_thread()
    from bertfam_tf.recipes import objectives
    from bertfam_tf.recipes.sentences import _Data
    from bertfam_tf.text import load_tokenizer
    from bertfam_tf.training import optimizers

    recipe = _recipe(run, text)
    tokenizer = load_tokenizer(recipe.model.tokenizer)
    made = objectives.build(recipe, tokenizer)
    data = _Data(recipe, tokenizer, made).train(run.length)
    batches = data.batches(run.batch_size, made.masking).map(made.batch).take(run.steps).cache()
    count = sum(1 for _ in batches)  # formed before, and kept
    # The highest resident memory is from now on.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    made.learner.compile(optimizers.from_settings(recipe.train, run.steps))
    times: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.process_time())
    )
    made.learner.fit(batches, shuffle=False, verbose=0, callbacks=[clock])
    seconds = (times[-1] - times[1]) / (count - 2)
    # The weights are there already.
    stored = 4 * made.learner.count_params()
    return {"bytes": resident("VmHWM") - before + stored, "seconds": seconds}


def _one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def resident(name: str) -> int:
    """Bytes; not from getrusage, whose highest number is that of the parent process at first."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


def _core_peak() -> float:
    """FLOP/s of a product of float32 matrices on one thread."""
    import tensorflow as tf

    x = tf.random.normal([2048, 2048])
    best = float("inf")
    for _ in range(6):
        start = time.process_time()
        tf.matmul(x, x).numpy()
        best = min(best, time.process_time() - start)
    return 2 * 2048**3 / best


def _in_process(run: Run, text: Path, onednn: bool) -> dict[str, float]:
    environment = {
        **os.environ,
        # Memory that is freed is returned at once, so that the peak is of what is in use.
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)),
    }
    command = [sys.executable, "-m", "tools.check_plan", "--measure", json.dumps(run), str(text)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(output.stdout.splitlines()[-1])


def _rows(cells: list[list[str]]) -> list[str]:
    head, *rest = [f"| {' | '.join(row)} |" for row in cells]
    return [head, "|" + " --- |" * len(cells[0]), *rest, ""]


def _published() -> Iterator[str]:
    from bertfam_tf import plan

    found = [["run", "PFLOP", "hours at 40 %", "published", "ratio", "share that was reached",
              "memory, GiB", "of", "cost at 40 %", "at that share", "published",
              "source"]]  # fmt: skip
    for run in _PUBLISHED:
        devices = plan.Devices(mfu=_SHARE, **run.devices)
        made = plan.plan(plan.read(run.recipe, run.changes), devices)
        total = sum(s.flops_per_token * s.length * s.batch_size * s.steps for s in made.stages)
        costs = (made.cost, made.cost and made.cost * run.hours / made.hours, run.cost)
        found.append(
            [
                run.name,
                f"{total / 1e15:,.0f}",
                f"{made.hours:.2f}",
                f"{run.hours:g}",
                f"{made.hours / run.hours:.2f}",
                f"{_SHARE * made.hours / run.hours:.1%}",
                f"{made.memory / plan.GIB:.1f}",
                f"{devices.memory:g}",
                *("" if cost is None else f"{cost:,.0f}" for cost in costs),
                run.source,
            ]
        )
        print(found[-1], file=sys.stderr)
        if run is _MOSAIC:
            [stage] = made.stages
            steps = 1.13 * 3600 / stage.seconds
    yield from _rows(found)
    yield (
        "MosaicBERT-base took 1.13 hours of 8 A100 for $20 (arXiv 2312.17482, abstract). The "
        "abstract does not say how many steps that was, and no family here has its blocks; a "
        "BERT-base would "
        f"do {steps:,.0f} steps of 4,096 examples in that time at 40 %."
    )
    yield ""


def _batches() -> Iterator[str]:
    from bertfam_tf import plan

    found = [["length", "dtype", "memory, GiB", "batch that fits", "planned, GiB",
              "batch out of memory", "planned, GiB"]]  # fmt: skip
    for length, dtype, memory, fits, too_large in _BATCHES:
        devices = plan.Devices(dtype=dtype)

        def planned(size: int, length: int = length, devices: Any = devices) -> str:
            changes = (*_LARGE, "stages=[]", "train.steps=1", "train.epochs=1")
            sizes = (f"data.length={length}", f"train.batch_size={size}")
            made = plan.plan(plan.read(_BERT, [*changes, *sizes]), devices)
            return f"{made.memory / plan.GIB:.1f}"

        rest = ["", ""] if too_large is None else [str(too_large), planned(too_large)]
        found.append([str(length), dtype, str(memory), str(fits), planned(fits), *rest])
        print(found[-1], file=sys.stderr)
    yield from _rows(found)


def _here() -> Iterator[str]:
    from bertfam_tf import plan
    from tools.books import paragraphs

    book = sorted((texts.DATA / "gutenberg").glob("*.txt"))[0]
    peak = _core_peak()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "book.txt"
        text.write_text("\n".join(paragraphs(book)) + "\n", "utf-8")

        def planned(run: Run) -> Any:
            devices = plan.Devices(peak=peak, mfu=_SHARE)
            return plan.plan(_recipe(run, text), devices).stages[0]

        found = [["hidden", "layers", "length", "batch", "steps", "planned, MiB", "measured, MiB",
                  "less the process's own", "ratio", "without oneDNN", "less the process's own",
                  "ratio", "GFLOP per step", "seconds at 40 %", "measured",
                  "share that was reached"]]  # fmt: skip
        for run in _RUNS:
            # Hardly any tensors, but the same operations: what is left is the process's own.
            small = run._replace(hidden_size=8, batch_size=1)
            made, tensors, mib = planned(run), planned(small).memory, 2**20
            cells = []
            for onednn in (True, False):
                measured = _in_process(run, text, onednn)
                net = measured["bytes"] - (_in_process(small, text, onednn)["bytes"] - tensors)
                cells += [measured["bytes"] / mib, net / mib]
                cells.append(made.memory / net)
                if onednn:
                    seconds = measured["seconds"]
            found.append(
                [
                    *map(str, run),
                    f"{made.memory / mib:.1f}",
                    *(f"{x:.3f}" if i % 3 == 2 else f"{x:.1f}" for i, x in enumerate(cells)),
                    f"{made.step_flops / 1e9:.1f}",
                    f"{made.seconds:.3f}",
                    f"{seconds:.3f}",
                    f"{made.step_flops / seconds / peak:.1%}",
                ]
            )
            print(found[-1], file=sys.stderr)
    yield from _rows(found)
    yield (
        f"The peak is that of a product of matrices of 2,048 by 2,048: {peak / 1e9:.1f} GFLOP/s. "
        "Measured memory is the highest resident memory of the process while it trains, less that "
        "before, plus the weights, which were there before. It includes the process's own: "
        "Python, graphs, kernels and their buffers, which are measured with the same model at "
        "width 8 and a batch of one, and subtracted in the next column; the ratio is of that one. "
        "oneDNN, which TensorFlow uses by default, keeps a kernel with its buffers for each shape, "
        "and shapes differ with the number of tokens; columns without it are with "
        "`TF_ENABLE_ONEDNN_OPTS=0`. Freed memory is returned to the system at once "
        "(`MALLOC_MMAP_THRESHOLD_=65536`). Where tensors are about 100 MiB, as in the first run, "
        "most of a process is something else, and a plan says little about it; ratios of the "
        "others vary by about 0.1 from one measurement to the next."
    )


def _report() -> Iterator[str]:
    yield "# Plans"
    yield ""
    yield (
        f"`python -m tools.check_plan`, {time.strftime('%Y-%m-%d')}, {platform.machine()}: what "
        "`bertfam plan` says beside published runs, and beside runs on this machine."
    )
    yield ""
    yield "## Published runs"
    yield ""
    yield (
        "All hours are planned with 40 % of the peak in the devices' data sheets: A100 312 "
        "TFLOP/s in half precision and 156 in TF32, V100 125 and 15.7 in float32, a chip of "
        "TPU v2 45 and of TPU v3 123. The share that was reached is what the published hours "
        "come to. Prices are $2.21 for an hour of an A100, $1.125 for a chip of TPU v2 and $2 for "
        "one of TPU v3."
    )
    yield ""
    yield from _published()
    yield "## Largest batches"
    yield ""
    yield (
        "BERT-large on one GPU: the batches that NVIDIA trained with, and those for which it "
        f"reports that memory ran out ({_NVIDIA}). Its runs were compiled with XLA, which fuses "
        "operations; plans are of graphs that are not."
    )
    yield ""
    yield from _batches()
    yield "## Runs on this machine"
    yield ""
    yield from _here()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--report", type=Path, help="the file to write")
    parser.add_argument("--measure", nargs=2, metavar=("RUN", "TEXT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        run, text = options.measure
        print(json.dumps(_measure(Run(*json.loads(run)), Path(text))))
        return
    _one_thread()
    report = "\n".join(_report()) + "\n"
    if options.report:
        options.report.write_text(report, "utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()
