"""Saves a task with the weights that ``tools.gpu_pretrain.train`` wrote; needs TensorFlow."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np

import bertfam_tf as bf
from bertfam_tf.recipes.reading import expand, load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.text import load_tokenizer


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Reads weights by path, float32.

    Raises:
        ValueError: if files are missing or of another size.
    """
    shapes = json.loads((folder / "weights.json").read_text("utf-8"))
    data = b"".join(file.read_bytes() for file in sorted(folder.glob("weights-*.bin")))
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    unpacked = zlib.decompressobj()
    try:
        high = unpacked.decompress(data)
    except zlib.error as error:
        raise ValueError(f"{folder} has damaged weights.") from error
    planes = unpacked.unused_data, high
    if [*map(len, planes)] != [sum(sizes)] * 2:
        found = sum(map(len, planes))
        raise ValueError(f"{folder} has {found:,} bytes of weights, expected {2 * sum(sizes):,}.")
    both = np.stack([np.frombuffer(plane, "uint8") for plane in planes], axis=1)
    values = np.ascontiguousarray(both).view(ml_dtypes.bfloat16)[:, 0].astype("float32")
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return {n: x.reshape(shape) for (n, shape), x in zip(shapes.items(), parts, strict=True)}


def main(file: str, weights: Path, output: Path) -> None:
    recipe = load_recipe(file, [], PretrainRecipe)
    # Sizes may have been changed for the run.
    settings = json.loads((weights / "result.json").read_text("utf-8"))["settings"]
    model = settings["model"]
    backbone = bf.build(model["family"], model["size"], **model["overrides"])
    tokenizer = load_tokenizer(expand(recipe.model.tokenizer))
    kind = bf.CausalLM if settings["objectives"] == ["clm"] else bf.MaskedLM
    task = kind(backbone, tokenizer, max_length=settings["data"]["length"])
    values = read_weights(weights)
    variables = {v.path: v for v in task.weights if v.path in values}
    if missing := sorted(values.keys() - variables.keys()):
        raise ValueError(f"The model has no weight {missing[0]}, one of {len(missing)}.")
    for path, variable in variables.items():
        variable.assign(values[path])
    task.save(output)
    print(f"{len(values)} weights in {output}")
