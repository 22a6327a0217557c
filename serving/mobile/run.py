"""Runs a .tflite file and prints its answers, one line of JSON per text.

    python serving/mobile/run.py MODEL.tflite "a text" …
    python serving/mobile/run.py MODEL.tflite --tokenizer DIRECTORY "a text" …

The second form is for files that take ids; DIRECTORY has the tokenizer's files. The texts of an
example with several texts are separated by tabs: text and pair, or query and document. The code
shows what an app has to do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.export.tflite import IdPacker, interpreter
from bertfam_tf.text import load_tokenizer

Feed = Callable[[list[str]], dict[str, np.ndarray]]


def feed_of(inputs: dict[str, Any], tokenizer: str | None) -> Feed:
    """A function that converts the texts of an example to the file's inputs.

    Args:
        inputs: the inputs of the signature, as LiteRT describes them.
        tokenizer: the tokenizer's directory, for files that take ids.

    Raises:
        ValueError: the file takes ids and there is no tokenizer; the function raises it for another
            number of texts than a file of texts takes.
    """
    if "ids" not in inputs:
        # LiteRT sorts the inputs of a signature by name.
        names = ["query", "document"] if "query" in inputs else sorted(inputs)

        def feed(texts: list[str]) -> dict[str, np.ndarray]:
            if len(texts) != len(names):
                raise ValueError(f"Expected {', '.join(names)}, separated by tabs, got {texts}.")
            pairs = zip(names, texts, strict=True)
            return {name: np.array([text.encode()], object) for name, text in pairs}

        return feed
    if tokenizer is None:
        raise ValueError("This file takes ids and needs --tokenizer.")
    packer = IdPacker(load_tokenizer(tokenizer), int(inputs["ids"]["shape"][1]))
    return lambda texts: packer(*([text] for text in texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a .tflite file")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--tokenizer", metavar="DIRECTORY", help="for files that take ids")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    options = parser.parse_args()
    runner = interpreter(Path(options.model).read_bytes(), options.threads).get_signature_runner()
    feed = feed_of(runner.get_input_details(), options.tokenizer)
    for text in options.text:
        inputs = feed(text.split("\t"))
        start = time.perf_counter()
        answer = {name: _plain(value[0]) for name, value in runner(**inputs).items()}
        milliseconds = round(1e3 * (time.perf_counter() - start), 1)
        print(json.dumps({**answer, "milliseconds": milliseconds}, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.tolist()


if __name__ == "__main__":
    main()
