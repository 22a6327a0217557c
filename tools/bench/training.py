"""Training speed on a GPU, Keras on JAX and transformers on PyTorch: masked tokens of BERT-base.

    python -m tools.bench.training [--sizes tiny] [--save tools/results/gpu_speed.md]
    python -m tools.bench.training --seconds 240 --engines bertfam_tf compiled

Both make steps of AdamW with clipped gradients and dropout, on the same rows, whose lengths are
half of the longest to the longest, padded. Logits are computed at the masked positions alone, in
transformers too, which has no option for this. Each engine, precision and shape is a process of its
own, one after the other; a repetition is 40 steps, and the table has medians of 5 (lowest to
highest). `--seconds` makes it a check: in the order of importance, 3 repetitions of the cases for
which there is time. First 8,192 gradients are added into a table of two rows, which XLA once
compiled to a loop in half precision. TensorFlow need not be installed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = {
    "bertfam_tf": "bertfam_tf, JAX",
    "transformers": "transformers, PyTorch",
    "compiled": "transformers, torch.compile",
}
PRECISIONS = {"bfloat16": "mixed bfloat16", "tf32": "float32 (TF32 products)"}
SHAPES = {"base": [(64, 128), (16, 512)], "tiny": [(4, 16)]}
SIZES = {
    "base": dict(
        vocab_size=30522, hidden_size=768, num_layers=12, num_heads=12, intermediate_size=3072
    ),
    "tiny": dict(
        vocab_size=100, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32
    ),
}  # fmt: skip
STEPS, REPEATS = 40, 5


def rows(count: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Token ids, their padding mask, and 15 % of the tokens as predictions."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(length // 2, length + 1, (count, 1))
    mask = np.arange(length) < lengths
    predictions = max(1, round(0.15 * length))
    order = np.where(mask, rng.random((count, length)), 2.0).argsort(1)
    tokens = np.where(mask, rng.integers(1, vocab_size, (count, length)), 0)
    return {
        "token_ids": tokens.astype("int32"),
        "padding_mask": mask.astype("int32"),
        "positions": np.sort(order[:, :predictions], 1).astype("int32"),
        "targets": rng.integers(1, vocab_size, (count, predictions)).astype("int32"),
        "weights": (np.arange(predictions) < 0.15 * lengths).astype("float32"),
    }


def parts(count: int, batch: int) -> Iterator[np.ndarray]:
    """Indices of the batches of one pass, in random order."""
    order = np.random.permutation(count)
    return (order[i : i + batch] for i in range(0, count, batch))


def ours(sizes: str, precision: str, batch: int, length: int, repeats: int) -> dict[str, Any]:
    """Seconds of each repetition; the first compiles. And the last loss."""
    import jax
    import keras

    import bertfam_tf as bf
    from bertfam_tf import heads
    from bertfam_tf.objectives import MaskedTokens
    from bertfam_tf.training import optimizers
    from bertfam_tf.training.learner import Learner

    keras.utils.set_random_seed(0)
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
    backbone = bf.build("bert", "base", dtype=policy, **SIZES[sizes])
    network = {"sequence_output": backbone.output["sequence_output"]}
    learner = Learner(backbone.input, network, [MaskedTokens(heads.build(backbone, "masked_lm"))])
    learner.compile(optimizers.adamw(5e-5, STEPS * (repeats + 1)))
    data = rows(STEPS * batch, length, SIZES[sizes]["vocab_size"])
    given = backbone.complete({name: data[name] for name in ("token_ids", "padding_mask")})
    seconds = []

    def batches() -> Iterator[tuple]:
        while True:
            for part in parts(len(data["token_ids"]), batch):
                targets = {"positions": data["positions"][part], "token_ids": data["targets"][part]}
                inputs = {name: np.asarray(x)[part] for name, x in given.items()}
                yield inputs, targets, data["weights"][part]

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begin = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            jax.block_until_ready([weight.value for weight in self.model.trainable_weights])
            seconds.append(time.perf_counter() - self.begin)

    history = learner.fit(
        batches(),
        steps_per_epoch=STEPS,
        epochs=repeats + 1,
        verbose=0,
        shuffle=False,  # ``parts`` does
        callbacks=[Clock()],
    )
    device = jax.devices()[0].device_kind
    return {"seconds": seconds, "loss": history.history["loss"][-1], "device": device}


def theirs(
    sizes: str, precision: str, batch: int, length: int, repeats: int, compiled: bool
) -> dict[str, Any]:
    """As ``ours``."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = transformers.BertConfig(
        vocab_size=SIZES[sizes]["vocab_size"],
        hidden_size=SIZES[sizes]["hidden_size"],
        num_hidden_layers=SIZES[sizes]["num_layers"],
        num_attention_heads=SIZES[sizes]["num_heads"],
        intermediate_size=SIZES[sizes]["intermediate_size"],
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.BertForMaskedLM(config).to(device).train()
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-5, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, STEPS * (repeats + 1))

    def loss_of(part: dict[str, Any]) -> Any:
        states = model.bert(part["token_ids"], attention_mask=part["padding_mask"])[0]
        index = part["positions"].long().unsqueeze(-1).expand(-1, -1, states.shape[-1])
        logits = model.cls(states.gather(1, index)).flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(
            logits.float(), part["targets"].long().flatten(), reduction="none"
        )
        weights = part["weights"].flatten()
        return (losses * weights).sum() / weights.sum()

    if compiled:
        loss_of = torch.compile(loss_of)
    data = rows(STEPS * batch, length, SIZES[sizes]["vocab_size"])
    seconds = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        losses = []
        for index in parts(len(data["token_ids"]), batch):
            part = {name: torch.from_numpy(x[index]).to(device) for name, x in data.items()}
            half = precision == "bfloat16"
            with torch.autocast(device, torch.bfloat16, enabled=half):
                loss = loss_of(part)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        mean = torch.stack(losses).mean().item()  # waits for the device
        seconds.append(time.perf_counter() - begin)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"seconds": seconds, "loss": mean, "device": name}


def scatter() -> dict[str, Any]:
    """Milliseconds to add 8,192 gradients of width 768 into two rows, by dtype."""
    import jax
    from jax import numpy as jnp

    milliseconds = {}
    for dtype in ("float32", "bfloat16"):
        gradients, ids = jnp.ones((8192, 768), dtype), jnp.zeros(8192, int)
        add = jax.jit(lambda g, ids=ids: jnp.zeros((2, 768), g.dtype).at[ids].add(g))
        add(gradients).block_until_ready()
        begin = time.perf_counter()
        for _ in range(20):
            table = add(gradients)
        table.block_until_ready()
        milliseconds[dtype] = 1000 * (time.perf_counter() - begin) / 20
    return {"milliseconds": milliseconds, "device": jax.devices()[0].device_kind}


def measure(engine: str, *case: Any) -> dict[str, Any]:
    """What ``scatter``, ``ours`` or ``theirs`` returns in a process of its own."""
    arguments = [json.dumps([engine, *case])]
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.training", "--case", *arguments],
        env={**os.environ, "KERAS_BACKEND": "jax", "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        return {"seconds": [], "loss": float("nan"), "device": ""}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=SIZES, default="base")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--seconds", type=float, default=math.inf, help="no new case after these")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        engine, *case = json.loads(options.case)
        if engine == "scatter":
            found = scatter()
        else:
            found = ours(*case) if engine == "bertfam_tf" else theirs(*case, engine == "compiled")
        print(json.dumps(found))
        return
    lines: list[list[str]] = []
    begin, longest = time.perf_counter(), 0.0
    repeats = REPEATS if options.seconds == math.inf else 3
    found = measure("scatter")
    device, milliseconds = found["device"], found.get("milliseconds", {})
    for precision in PRECISIONS:
        for batch, length in SHAPES[options.sizes]:
            rates: dict[str, list[float]] = {}
            for engine in options.engines:
                start = time.perf_counter()
                if start - begin + longest > options.seconds:
                    continue
                found = measure(engine, options.sizes, precision, batch, length, repeats)
                longest = max(longest, time.perf_counter() - start)
                device = device or found["device"]
                rates[engine] = [STEPS * batch / x for x in found["seconds"][1:]]
                print(engine, precision, batch, length, found, flush=True)
            ratio = _ratio(rates, "transformers"), _ratio(rates, "compiled")
            cells = [_cell(rates.get(engine, [])) for engine in ENGINES]
            lines.append([f"{batch} × {length}", PRECISIONS[precision], *cells, *ratio])
    heads = ["batch × tokens", "precision", *ENGINES.values(), "beside PyTorch", "beside compiled"]
    table = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *lines)]
    added = ", ".join(f"{name} {value:.2f} ms" for name, value in milliseconds.items())
    table += ["", f"8,192 gradients of width 768 into two rows: {added or 'not run'}."]
    text = "\n".join(["# Training on a GPU", "", *_explanation(device), "", *table]) + "\n"
    print(text)
    if options.save:
        options.save.write_text(text, "utf-8")


def _ratio(rates: dict[str, list[float]], peer: str) -> str:
    if not rates.get("bertfam_tf") or not rates.get(peer):
        return ""
    return f"{statistics.median(rates['bertfam_tf']) / statistics.median(rates[peer]):.2f} ×"


def _cell(rates: list[float]) -> str:
    if not rates:
        return "not run"
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def _explanation(device: str) -> list[str]:
    from tools.bench import machine

    packages = machine.versions(["keras", "jax", "torch", "transformers"])
    assert __doc__ is not None
    what = " ".join(__doc__.split("\n\n")[2].split("`--seconds`")[0].split())
    text = (
        f"`python -m tools.bench.training`: examples per second. {what} {device}, "
        f"{datetime.date.today().isoformat()}; {packages}."
    )
    return textwrap.wrap(text, 100)


if __name__ == "__main__":
    main()
