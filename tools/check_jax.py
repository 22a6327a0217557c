"""Compares families on JAX with TensorFlow, and four devices with one: python -m tools.check_jax

Outputs and gradients are of perturbed weights, N(0, 0.3), in float64; steps train one layer
in float32. TensorFlow writes its own to files, and a process without it, on JAX, compares. There,
steps are also made with batches split over four devices (data parallel), and with weights split
over four (model parallel). Arguments are names of families; without any, all are compared, and the
results go to tools/results/jax.md.

On a GPU, TensorFlow need not be installed; what it computes is written elsewhere:

    python -m tools.check_jax --write DIR
    KERAS_BACKEND=jax python -m tests.on_jax DIR "" bert gpt2 … > FILE    # where the GPU is
    python -m tools.check_jax --report FILE    # writes tools/results/jax_gpu.md
"""

import argparse
import datetime
import json
import sys
import textwrap
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bertfam_tf as bf
from tests.on_jax import DEVICES, SIZE, STEPS, on_jax, write

RESULTS = Path(__file__).parent / "results"
HOW = (
    "Outputs (all of the backbone, and of every head) and gradients: JAX beside TensorFlow in "
    "float64, relative, weights perturbed by N(0, 0.3). Steps: losses and weights of one layer "
    f"after {STEPS} steps of AdamW at 1e-3 in float32, absolute, from N(0, 0.1): JAX beside "
    "TensorFlow"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*")
    parser.add_argument("--write", type=Path, metavar="DIR")
    parser.add_argument("--report", type=Path, metavar="FILE")
    options = parser.parse_args()
    families = options.families or bf.families()
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        write(options.write, families)
    elif options.report:
        rows = [json.loads(line) for line in options.report.read_text("utf-8").splitlines()]
        (device,) = {row.pop("device") for row in rows}
        day = datetime.date.today().isoformat()
        how = f"{HOW} on a CPU, and JAX on the GPU. {device}, {day}."
        _save("jax_gpu.md", "JAX on a GPU", how, ["steps"], sorted(rows, key=itemgetter("family")))
    else:
        rows = _compare(families)
        if not options.families:
            how = f"{HOW}, and {DEVICES} virtual CPU devices beside one."
            _save("jax.md", "JAX", how, ["steps", "data parallel", "model parallel"], rows)


def _compare(families: list[str]) -> list[dict[str, Any]]:
    rows = []
    with TemporaryDirectory() as folder:
        write(Path(folder), families)
        with on_jax(Path(folder), ["data,model", *families]) as process:
            assert process.stdout is not None
            for line in process.stdout:
                rows.append(json.loads(line))
                del rows[-1]["device"]
                print(_line(rows[-1].values()), flush=True)
    if process.returncode:
        sys.exit(process.returncode)
    return rows


def _save(name: str, title: str, how: str, columns: list[str], rows: list[dict]) -> None:
    names = ["family", "outputs", "gradients", *columns, "seconds"]
    sizes = "Sizes: " + ", ".join(f"{name} {value}" for name, value in SIZE.items()) + "."
    doc = [
        *(f"# {title}", ""),
        *textwrap.wrap("`python -m tools.check_jax`: the largest differences of each family.", 100),
        *textwrap.wrap(f"{how} {sizes}", 100),
        *("", f"| {' | '.join(names)} |", "|---" * len(names) + "|"),
        *(_line(row.values()) for row in rows),
    ]
    (RESULTS / name).write_text("\n".join(doc) + "\n", "utf-8")


def _line(values: Iterable[Any]) -> str:
    family, *found, seconds = values
    return f"| {family} | {' | '.join(f'{x:.1e}' for x in found)} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
