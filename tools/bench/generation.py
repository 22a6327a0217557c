"""Measures the speed of generation, compared with transformers.

    python -m tools.bench.generation            # writes tools/results/generation_speed.md
    python -m tools.bench.generation --quick    # few tokens; writes nothing

GPT-2 of base size with random weights, the same on both sides, continues random prompts of 16
tokens in float32. Each number of threads has a process of its own, pinned to as many cores; in it,
contenders take turns after a round to warm up, and the median of their rounds counts. Needs the
packages that `make live` installs.
"""

from __future__ import annotations

import os

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools.bench import machine

RESULT = Path(__file__).parent.parent / "results" / "generation_speed.md"
PROMPT, VOCABULARY, ROUNDS, QUICK = 16, 50257, 2, 12
PACKAGES = ("tensorflow", "keras", "transformers", "torch")


class Row(NamedTuple):
    """One row of the table: how many prompts, how many new tokens, and our options."""

    name: str
    batch: int
    tokens: int
    options: dict[str, Any]


ROWS = [
    Row("greedy", 1, 256, {}),
    Row("greedy", 4, 128, {}),
    Row("beam search, 4 beams", 1, 128, {"num_beams": 4}),
    Row("sampling, top_p=0.95", 1, 128, {"temperature": 0.7, "top_p": 0.95}),
]


def ours(directory: str, row: Row, tokens: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from prompts to new tokens, which runs one graph."""
    import tensorflow as tf

    import bertfam_tf as bf
    from bertfam_tf import generation, heads

    backbone = bf.load_backbone(directory)
    step = generation.decoder(backbone, heads.build(backbone, "causal_lm").logits_of_few)
    options = generation.Options(max_new_tokens=tokens, **row.options)
    prompts = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[prompts, prompts], autograph=False)
    def generate(token_ids, padding_mask):
        return generation.generate(step, token_ids, padding_mask, options, seed=tf.constant([1, 2]))

    def run(prompts: np.ndarray) -> np.ndarray:
        token_ids = tf.constant(prompts, tf.int32)
        return generate(token_ids, tf.ones_like(token_ids)).numpy()

    return run


def theirs(directory: str, row: Row, tokens: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the same function with transformers."""
    import torch
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(directory).eval()
    sampled = {"do_sample": "top_p" in row.options}
    sampled |= {"top_k": 0} if sampled["do_sample"] else {}

    def run(prompts: np.ndarray) -> np.ndarray:
        token_ids = torch.tensor(prompts)
        with torch.inference_mode():
            generated = model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),
                max_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=0,
                **sampled,
                **row.options,
            )
        return generated[:, PROMPT:].numpy()

    return run


def measure(directory: str, threads: int, quick: bool) -> list[dict[str, float]]:
    """Returns the seconds of both and the share of equal tokens, for each row."""
    import tensorflow as tf
    import torch

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    torch.set_num_threads(threads)
    results = []
    for row in ROWS:
        tokens = QUICK if quick else row.tokens
        contenders = {"ours": ours, "transformers": theirs}
        runs = {name: make(directory, row, tokens) for name, make in contenders.items()}
        prompts = np.random.default_rng(0).integers(0, VOCABULARY, (row.batch, PROMPT))
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        answers = {name: run(prompts) for name, run in runs.items()}
        for _ in range(1 if quick else ROUNDS):
            for name, run in runs.items():
                start = time.perf_counter()
                run(prompts)
                seconds[name].append(time.perf_counter() - start)
        result = {name: statistics.median(values) for name, values in seconds.items()}
        result["equal"] = float((answers["ours"] == answers["transformers"]).mean())
        print(f"{threads} threads, {row.name}, {row.batch}: {result}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def save_model(directory: str) -> None:
    """Saves the model, whose logits differ enough that equal tokens show equal computations."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(initializer_range=0.1)
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)


def report(results: dict[int, list[dict[str, float]]]) -> str:
    """Returns the content of the results file."""
    rows = [
        "| threads | search | prompts | new tokens | ours, tokens/s | transformers, tokens/s "
        "| ours / transformers | equal tokens |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for threads, measured in results.items():
        for row, result in zip(ROWS, measured, strict=True):
            count = row.batch * row.tokens
            speeds = [count / result[name] for name in ("ours", "transformers")]
            equal = "–" if "top_p" in row.options else f"{result['equal']:.0%}"
            rows.append(
                f"| {threads} | {row.name} | {row.batch} | {row.tokens} | {speeds[0]:.1f} "
                f"| {speeds[1]:.1f} | {speeds[0] / speeds[1]:.2f} | {equal} |"
            )
    onednn = "with" if machine.onednn_by_default() else "without"
    return (
        "# Speed of generation\n\n"
        f"`python -m tools.bench.generation`, {datetime.date.today()}, {machine.cpu()} "
        f"({', '.join(machine.vectors())}); TensorFlow runs {onednn} oneDNN. Python "
        f"{platform.python_version()}, {machine.versions(PACKAGES)}.\n\n"
        f"GPT-2 of base size, random weights, float32, prompts of {PROMPT} tokens; times include "
        "the prompt. As many cores as threads; contenders take turns, median of "
        f"{ROUNDS} rounds. Sampling draws different tokens on both sides.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of generation.")
    parser.add_argument("--quick", action="store_true", help="few tokens; write nothing")
    parser.add_argument("--measure", nargs=2, metavar=("DIRECTORY", "THREADS"))
    options = parser.parse_args()
    if options.measure:
        directory, threads = options.measure[0], int(options.measure[1])
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
        print(json.dumps(measure(directory, threads, options.quick)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        save_model(directory)
        for threads in sorted({1, min(2, len(os.sched_getaffinity(0)))}):
            command = [sys.executable, "-m", "tools.bench.generation"]
            command += ["--measure", directory, str(threads), *(["--quick"] * options.quick)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results[threads] = json.loads(done.stdout.splitlines()[-1])
    if options.quick:
        return
    text = report(results)
    print(text)
    RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
