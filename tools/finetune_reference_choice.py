"""Fine-tunes on RACE with the reference implementation by one of our recipes.

    BERTFAM_DATA=… python -m tools.finetune_reference_choice RECIPE [key=value …]

``data.train`` and ``data.dev`` are folders of passages, or of an archive, such as
``race-middle.tar.gz/RACE/train/middle``. A choice is read as ``MultipleChoice`` reads it: behind
the article, the question and a space before it; the article is cut. Prints the dev accuracy and
the time.
"""

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bertfam_tf.config import expand
from bertfam_tf.sources import resolve
from tools.finetune_reference import arguments, logits, train


def _passages(path: Path) -> Iterator[dict]:
    archive = next((p for p in (path, *path.parents) if p.is_file()), None)
    if archive is None:
        for file in sorted(path.rglob("*.txt")):
            yield json.loads(file.read_bytes())
        return
    with tarfile.open(archive) as members:
        inside = str(path.relative_to(archive)).removeprefix(".")
        # In the archive's order, as ours: another one makes other rows of ``data.limit``.
        for member in members:
            if member.isfile() and f"/{inside}/" in f"/{member.name}":
                yield json.load(members.extractfile(member))


def _rows(data: Any, split: str) -> list[tuple[str, str, list[str], int]]:
    """Articles, a question on each, four answers, and the place of the right one."""
    found = [
        (passage["article"], question, options, "ABCD".index(answer))
        for passage in _passages(expand(getattr(data, split)))
        for question, options, answer in zip(
            passage["questions"], passage["options"], passage["answers"], strict=True
        )
    ]
    return found[: data.limit] if split == "train" else found


def main() -> None:
    recipe = arguments(__doc__)
    directory = resolve(recipe.model.path)
    rows, dev = (_rows(recipe.data, split) for split in ("train", "dev"))
    torch.manual_seed(recipe.train.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(directory)
    options = dict(padding=True, truncation="only_first", max_length=recipe.model.max_length)

    def encoded(rows: list) -> Callable[[list[int]], dict]:
        def batch_of(batch: list[int]) -> dict:
            articles = [rows[i][0] for i in batch for _ in rows[i][2]]
            choices = [f"{rows[i][1]} {option}" for i in batch for option in rows[i][2]]
            found = tokenizer(articles, choices, return_tensors="pt", **options)
            inputs = {k: v.reshape(len(batch), -1, v.shape[-1]) for k, v in found.items()}
            return {**inputs, "labels": torch.tensor([rows[i][3] for i in batch])}

        return batch_of

    lengths = [sum(len(text.encode()) for text in (a, q, *options)) for a, q, options, _ in rows]
    cost = train(model, recipe.train, lengths, encoded(rows))
    found = logits(model, len(dev), encoded(dev), size=16).argmax(-1)
    accuracy = float(np.mean(found == [right for *_, right in dev]))
    print(json.dumps({"accuracy": accuracy, **cost}))


if __name__ == "__main__":
    main()
