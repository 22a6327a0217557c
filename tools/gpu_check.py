"""A check of at most four minutes of training on a GPU, Keras on JAX beside PyTorch.

    python -m tools.gpu_check [--sizes tiny] [--seconds 240] [--save tools/results/gpu_check.md]

First the sum of 8,192 gradients into a table of two rows, which XLA once compiled to a loop in half
precision; then steps of BERT-base as `tools.bench.training` makes them, in the order of their
importance, as long as there is time for one more. With `--sizes tiny` it also runs on a CPU.
TensorFlow need not be installed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tools.bench.training import REPEATS, SHAPES, STEPS, measure

_MICRO = """
import json, time, jax, jax.numpy as jnp
milliseconds = {}
for dtype in ("float32", "bfloat16"):
    gradients, ids = jnp.ones((8192, 768), dtype), jnp.zeros(8192, int)
    add = jax.jit(lambda g: jnp.zeros((2, 768), g.dtype).at[ids].add(g))
    add(gradients).block_until_ready()
    begin = time.perf_counter()
    for _ in range(20):
        result = add(gradients)
    result.block_until_ready()
    milliseconds[dtype] = 1000 * (time.perf_counter() - begin) / 20
print(json.dumps({"milliseconds": milliseconds, "device": jax.devices()[0].device_kind}))
"""
_ENGINES = ("bertfam_tf", "compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=SHAPES, default="base")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _MICRO], stdout=subprocess.PIPE, text=True, check=True
    )
    micro = json.loads(done.stdout.splitlines()[-1])
    print(micro, flush=True)
    rows, longest = [], 0.0
    cases = [
        (engine, precision, *shape)
        for precision in ("bfloat16", "tf32")
        for shape in SHAPES[options.sizes]
        for engine in _ENGINES
    ]
    for engine, precision, batch, length in cases:
        start = time.perf_counter()
        if start - begin + longest > options.seconds:
            rows.append((engine, precision, batch, length, None, None))
            continue
        result = measure(engine, options.sizes, precision, batch, length, min(REPEATS, 3))
        longest = max(longest, time.perf_counter() - start)
        steps = [1000 * seconds / STEPS for seconds in result["seconds"][1:]]
        median = statistics.median(steps) if steps else None
        rows.append((engine, precision, batch, length, median, result["loss"]))
        print(*rows[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
    text = _table(micro, rows)
    print(text)
    if options.save:
        options.save.write_text(text, "utf-8")


def _table(micro: dict, rows: list[tuple]) -> str:
    milliseconds = micro["milliseconds"]
    lines = [
        "# A check of training on a GPU",
        "",
        f"`python -m tools.gpu_check`: {micro['device']}, {os.cpu_count()} cores, "
        f"{datetime.date.today().isoformat()}.",
        "8,192 gradients of width 768 into two rows: "
        + ", ".join(f"{name} {value:.2f} ms" for name, value in milliseconds.items())
        + ".",
        "",
        "| engine | precision | batch × tokens | ms a step | examples/s |",
        "|---|---|---|---|---|",
    ]
    for engine, precision, batch, length, median, _ in rows:
        cells = (
            ("not run", "")
            if median is None
            else (f"{median:.1f}", f"{1000 * batch / median:,.0f}")
        )
        lines.append(f"| {engine} | {precision} | {batch} × {length} | {' | '.join(cells)} |")
    steps = {tuple(case): median for *case, median, _ in rows if median is not None}
    ratios = [
        f"{precision}, {batch} × {length}: {steps['compiled', precision, batch, length] / ms:.2f}"
        for (engine, precision, batch, length), ms in steps.items()
        if engine == "bertfam_tf" and ("compiled", precision, batch, length) in steps
    ]
    lines += ["", "Times as fast as transformers with torch.compile: " + ", ".join(ratios) + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
