"""Time of a step for several sizes of a model: python -m tools.gpu_pretrain.probe PACK WxD …"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import numpy as np

from tools.gpu_pretrain import packed, train

jax.config.update("jax_default_matmul_precision", "tensorfloat32")


def main() -> None:
    arrays, settings = packed.read(Path(sys.argv[1]))
    for size in sys.argv[2:]:
        begin = time.perf_counter()
        width, depth, batch = map(int, size.split("x"))
        settings["model"]["overrides"] |= {
            "hidden_size": width,
            "num_layers": depth,
            "num_heads": width // 64,
            "intermediate_size": 4 * width,
        }
        settings["train"]["batch_size"] = batch
        made = train.Pretraining(arrays, settings)
        index = np.arange(batch, dtype="int32")
        call = made.rows["train"], index, np.stack([index, index], 1), np.float32(1e-3)
        state, loss = made._step(made.state, *call)
        loss.block_until_ready()
        compiled = time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(30):
            state, loss = made._step(state, *call)
        loss.block_until_ready()
        seconds = (time.perf_counter() - begin) / 30
        row = {"size": size, "ms": 1000 * seconds, "tokens/s": batch * made.length / seconds}
        print(json.dumps({**row, "loss": float(loss), "compiled": compiled}), flush=True)
        if size == sys.argv[2]:
            made.state = state
            begin = time.perf_counter()
            print("held out", made.held_out(), time.perf_counter() - begin, flush=True)
            begin = time.perf_counter()
            print("pairs", made.minimal_pairs(10)["mean"], time.perf_counter() - begin, flush=True)
            begin = time.perf_counter()
            print("pairs", made.minimal_pairs()["mean"], time.perf_counter() - begin, flush=True)
            made.state = None


if __name__ == "__main__":
    main()
