"""Families on JAX beside TensorFlow, steps on four devices beside one: python -m tools.check_jax

Outputs and gradients are those of perturbed weights, N(0, 0.3), in float64; steps train one layer
in float32. TensorFlow writes its own to files, and a process without it, on JAX, compares. There,
steps are also made with batches split over four devices (data parallel), and with weights split
over four (model parallel). Arguments are names of families; without any, all are compared, and the
results go to tools/results/jax.md.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bertfam_tf as bf
from tests.on_jax import DEVICES, SIZE, STEPS, on_jax, write

RESULTS = Path(__file__).parent / "results" / "jax.md"


def main(families: list[str]) -> None:
    with TemporaryDirectory() as folder:
        write(Path(folder), families or bf.families())
        rows = []
        with on_jax(Path(folder), ["data,model", *(families or bf.families())]) as process:
            assert process.stdout is not None
            for line in process.stdout:
                rows.append(json.loads(line))
                print(_line(rows[-1].values()), flush=True)
        if process.returncode:
            sys.exit(process.returncode)
    if families:
        return
    doc = [
        "# JAX",
        "",
        "`python -m tools.check_jax`: the largest differences of each family. Outputs (all of the",
        "backbone, and of every head) and gradients: JAX beside TensorFlow in float64, relative,",
        "weights perturbed by N(0, 0.3). Steps: losses and weights of one layer after "
        f"{STEPS} steps of AdamW",
        "at 1e-3 in float32, absolute, from N(0, 0.1): JAX beside TensorFlow, and "
        f"{DEVICES} virtual CPU",
        "devices beside one.",
        "Sizes: " + ", ".join(f"{name} {value}" for name, value in SIZE.items()) + ".",
        "",
        "| family | outputs | gradients | steps | data parallel | model parallel | seconds |",
        "|---|---|---|---|---|---|---|",
        *(_line(row.values()) for row in rows),
    ]
    RESULTS.write_text("\n".join(doc) + "\n", "utf-8")


def _line(values: Iterable[Any]) -> str:
    family, *found, seconds = values
    return f"| {family} | {' | '.join(f'{x:.1e}' for x in found)} | {seconds:.0f} |"


if __name__ == "__main__":
    main(sys.argv[1:])
