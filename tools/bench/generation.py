"""Measures the speed of generation: with the cache, without it, and beside transformers.

    python -m tools.bench.generation            # writes tools/results/generation_speed.md
    python -m tools.bench.generation --quick    # few tokens; writes nothing

GPT-2 of base size with random weights, the same on both sides, continues random prompts of 16
tokens by the likeliest token, in batches of 1 and 4. Contenders go in turns after a round to warm
up, and the median of their rounds counts; without the cache there is one round. All should choose
the same tokens. Needs what `make live` installs.
"""

from __future__ import annotations

import os

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

import argparse
import datetime
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import torch
import transformers

import bertfam_tf as bf
from bertfam_tf import generation, heads
from bertfam_tf.generation import CachedDecoder, Options
from tools.plain_decoder import PlainDecoder

RESULT = Path(__file__).parent.parent / "results" / "generation_speed.md"
PROMPT, NEW, BATCHES, ROUNDS = 16, 256, (1, 4), 3


def ours(backbone: keras.Model, kind: type, new: int) -> Callable[[np.ndarray], np.ndarray]:
    """Greedy generation in one graph."""
    head = heads.build(backbone, "causal_lm")
    step = kind(backbone, head.logits)
    rows = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[rows, rows], autograph=False)
    def generate(token_ids, padding_mask):
        options = Options(max_new_tokens=new)
        return generation.generate(step, token_ids, padding_mask, options)

    def run(tokens: np.ndarray) -> np.ndarray:
        given = tf.constant(tokens, tf.int32)
        return generate(given, tf.ones_like(given)).numpy()

    return run


def theirs(model: torch.nn.Module, new: int) -> Callable[[np.ndarray], np.ndarray]:
    """The same by transformers."""

    def run(tokens: np.ndarray) -> np.ndarray:
        given = torch.tensor(tokens)
        with torch.no_grad():
            found = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return found[:, PROMPT:].numpy()

    return run


def measure(new: int, rounds: int) -> dict[tuple[str, int], float]:
    """Seconds by contender and batch."""
    torch.manual_seed(0)
    # Wider than the published start, so that tokens differ from each other.
    config = transformers.GPT2Config(initializer_range=0.1)
    model = transformers.GPT2LMHeadModel(config).eval()
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        backbone = bf.load_backbone(directory)
    contenders = {
        "ours": ours(backbone, CachedDecoder, new),
        "transformers": theirs(model, new),
        "ours, no cache": ours(backbone, PlainDecoder, new),
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    rng = np.random.default_rng(0)
    for batch in BATCHES:
        tokens = rng.integers(0, 50257, (batch, PROMPT))
        expected = contenders["ours"](tokens)
        for turn in range(rounds + 1):
            for name, run in contenders.items():
                if name == "ours, no cache" and turn != 1:
                    continue
                start = time.perf_counter()
                found = run(tokens)
                took = time.perf_counter() - start
                agree = (found == expected).mean()
                print(f"batch {batch}, {name}: {took:.2f} s, same tokens: {agree:.1%}", flush=True)
                if turn:
                    seconds.setdefault((name, batch), []).append(took)
    return {key: statistics.median(values) for key, values in seconds.items()}


def report(seconds: dict[tuple[str, int], float], new: int) -> str:
    """What the results file holds."""
    rows = [
        "| batch | ours, tokens/s | transformers, tokens/s | ours / transformers "
        "| ours without cache, tokens/s | speed-up of the cache |",
        "|---|---|---|---|---|---|",
    ]
    for batch in BATCHES:
        cached, peer = (batch * new / seconds[name, batch] for name in ("ours", "transformers"))
        plain = batch * new / seconds["ours, no cache", batch]
        rows.append(
            f"| {batch} | {cached:.1f} | {peer:.1f} | {cached / peer:.2f} "
            f"| {plain:.1f} | {cached / plain:.1f} |"
        )
    return (
        "# Speed of generation\n\n"
        f"`python -m tools.bench.generation`, {datetime.date.today()}, {platform.machine()}, "
        f"{os.cpu_count()} cores. Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"Keras {keras.__version__}, transformers {transformers.__version__}, torch "
        f"{torch.__version__}.\n\n"
        f"GPT-2 of base size, random weights, float32, greedy, prompts of {PROMPT} tokens, {new} "
        "new tokens; prompts are read within the time.\n\n" + "\n".join(rows) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of generation.")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    new = 48 if quick else NEW
    text = report(measure(new, 1 if quick else ROUNDS), new)
    print(text)
    if not quick:
        RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
