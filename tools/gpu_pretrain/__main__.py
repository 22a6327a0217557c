"""Pretrains a recipe with Keras on JAX, on a machine that has a GPU and no TensorFlow.

    python -m tools.gpu_pretrain pack configs/gpt2/wikipedia.yaml pack.xz --blimp DIR
    python -m tools.gpu_pretrain train pack.xz OUT [--minutes 8]         # where the GPU is
    python -m tools.gpu_pretrain assemble configs/gpt2/wikipedia.yaml OUT runs/wikipedia_gpt2

`pack` reads text and writes the examples' token ids, BLiMP's sentences and the recipe's settings.
`train` needs JAX, Keras and this package; it writes the curve and the weights as bfloat16.
`assemble` saves a task with these weights and the tokenizer, which `bertfam_tf.load` reads.
`train --steps 100 --set model.overrides.num_layers=12` times steps of another size.
Where `masking.max_predictions` is set, masks equal `bertfam pretrain`'s, number by number;
examples are shuffled over the whole text.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("pack")
    verb.add_argument("recipe")
    verb.add_argument("output", type=Path)
    verb.add_argument("--blimp", type=Path)
    verb = verbs.add_parser("train")
    verb.add_argument("pack", type=Path)
    verb.add_argument("output", type=Path)
    verb.add_argument("--minutes", type=float)
    verb.add_argument("--steps", type=int)
    verb.add_argument("--evaluations", type=int, default=8)
    verb.add_argument("--pairs", type=int, default=10, help="in evaluations, one of so many")
    verb.add_argument("--pairs-at-end", type=int, default=1)
    verb.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings")
    verb = verbs.add_parser("assemble")
    verb.add_argument("recipe")
    verb.add_argument("weights", type=Path)
    verb.add_argument("output", type=Path)
    options = parser.parse_args()
    if options.verb == "pack":
        from tools.gpu_pretrain import pack

        pack.main(options.recipe, options.output, options.blimp)
    elif options.verb == "assemble":
        from tools.gpu_pretrain import assemble

        assemble.main(options.recipe, options.weights, options.output)
    else:
        os.environ["KERAS_BACKEND"] = "jax"
        _train(options)


def _train(options: argparse.Namespace) -> None:
    import jax

    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    from tools.gpu_pretrain import packed, train

    begin = time.perf_counter()
    arrays, settings = packed.read(options.pack)
    for change in options.set:
        key, value = change.split("=", 1)
        *path, last = key.split(".")
        functools.reduce(dict.__getitem__, path, settings)[last] = json.loads(value)
    if options.minutes is None and options.steps is None:
        options.minutes = settings["train"]["minutes"]
    made = train.Pretraining(arrays, settings)
    count = sum(v.value.size for v in made.learner.trainable_variables)
    device = jax.devices()[0].device_kind
    print(f"{device}: {count:,} weights, {time.perf_counter() - begin:.0f} s", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)

    def report(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        with open(options.output / "history.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    made.run(options.minutes, options.steps, options.evaluations, options.pairs, report)
    train.save(made.weights(), options.output)
    pairs = made.minimal_pairs(options.pairs_at_end)
    print(json.dumps(pairs), flush=True)
    result = {"device": device, "settings": settings, "minimal_pairs": pairs}
    (options.output / "result.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(f"{time.perf_counter() - begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
