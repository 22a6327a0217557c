"""The server that one writes instead: starlette, tokenizers and ONNX Runtime.

    python -m tools.bench.onnx_server DIR float32 2 1    # requests at once, threads of each

It answers TensorFlow Serving's REST requests for a classifier that `python -m tools.bench.cpu
--models DIR` wrote, and prints its address.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tools.bench.cpu.engines import Onnx
from tools.bench.cpu.workloads import CLASSIFY, LENGTH

LABELS = ("negative", "positive")


def main() -> None:
    models, variant, workers, threads = sys.argv[1:]
    answer = Onnx(Path(models), variant, int(threads)).runner(CLASSIFY, LENGTH)
    pool = ThreadPoolExecutor(int(workers))

    async def predict(request: Request) -> JSONResponse:
        texts = (await request.json())["instances"]
        loop = asyncio.get_running_loop()
        scores = (await loop.run_in_executor(pool, answer, texts)).tolist()
        rows = [{"label": LABELS[row.index(max(row))], "scores": row} for row in scores]
        return JSONResponse({"predictions": rows})

    route = Route("/v1/models/model:predict", predict, methods=["POST"])
    config = uvicorn.Config(Starlette(routes=[route]), log_level="warning", access_log=False)
    # For sockets that do not name TCP, asyncio leaves Nagle's algorithm on: 40 ms in each answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/models/model", flush=True)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
