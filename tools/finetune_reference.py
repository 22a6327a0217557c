"""Fine-tunes on texts or pairs with the reference implementation by one of our recipes.

    BERTFAM_DATA=… python -m tools.finetune_reference configs/bert/sst2.yaml [key=value …]

Same checkpoint, rows, batch size, optimizer and schedule as ``bertfam train``; torch and
transformers (tools/requirements.txt) do the rest. A recipe for ``TextRegressor`` has numbers for
labels. Prints the dev split's metrics and the time.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

from bertfam_tf.config import expand, load_recipe
from bertfam_tf.metrics import F1, Matthews, Pearson, Spearman
from bertfam_tf.sources import resolve


def command_line(description: str) -> argparse.ArgumentParser:
    """It takes a recipe and its overrides; ``recipe_of`` reads them."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("override", nargs="*")
    return parser


def recipe_of(given: argparse.Namespace) -> Any:
    return load_recipe(given.recipe, given.override)


def arguments(description: str) -> Any:
    """The recipe that the command line names."""
    return recipe_of(command_line(description).parse_args())


def _rows(data: Any, split: str) -> tuple[list[tuple[str, ...]], list[str]]:
    lines = expand(getattr(data, split)).read_text("utf-8-sig").removesuffix("\n").split("\n")
    cells = [line.removesuffix("\r").split("\t") for line in lines]
    columns = [c for c in (data.text, data.text_pair, data.label) if c is not None]
    if any(isinstance(column, str) for column in columns):
        header = cells.pop(0)
        columns = [header.index(c) if isinstance(c, str) else c for c in columns]
    if split == "train":
        cells = cells[: data.limit]
    *texts, label = columns
    return [tuple(row[i] for i in texts) for row in cells], [row[label] for row in cells]


def parts(order: list, size: int) -> list[list]:
    return [order[start : start + size] for start in range(0, len(order), size)]


def _by_length(lengths: list[int], size: int, window: int = 32) -> list[list[int]]:
    """Batches as bertfam_tf.data.shuffled_batches makes them."""
    batches = []
    for part in parts(torch.randperm(len(lengths)).tolist(), window * size):
        batches += parts(sorted(part, key=lambda i: lengths[i]), size)
    return [batches[i] for i in torch.randperm(len(batches)).tolist()]


def train(
    model: Any, settings: Any, lengths: list[int], batch_of: Callable[[list[int]], dict]
) -> dict[str, Any]:
    """Fine-tunes as ``bertfam train`` does, and says how long it took.

    Args:
        model: whose loss is learnt.
        settings: the recipe's section ``train``.
        lengths: bytes of each row.
        batch_of: rows' numbers to the model's arguments.
    """
    plain = [n for n, _ in model.named_parameters() if "bias" in n or "LayerNorm" in n]
    named = list(model.named_parameters())
    groups = [
        {
            "params": [p for n, p in named if n not in plain],
            "weight_decay": settings.weight_decay,
        },
        {"params": [p for n, p in named if n in plain], "weight_decay": 0.0},
    ]
    betas = (0.9, settings.beta_2)
    optimizer = torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=betas, eps=settings.epsilon
    )
    steps = -(-len(lengths) // settings.batch_size) * settings.epochs
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(settings.warmup * steps), steps
    )
    start = time.perf_counter()
    model.train()
    for epoch in range(settings.epochs):
        losses = []
        for batch in _by_length(lengths, settings.batch_size):
            found = model(**batch_of(batch)).loss
            found.backward()
            if settings.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(found.item())
        loss = float(np.mean(losses))
        print(f"epoch {epoch + 1}: mean loss {loss:.7f}", flush=True)
    model.eval()
    seconds = round(time.perf_counter() - start, 1)
    return {"train_loss": round(loss, 5), "train_seconds": seconds, "steps": steps}


def logits(model: Any, count: int, batch_of: Callable[[list[int]], dict], size: int = 64) -> Any:
    """Of all rows, float32 (rows, labels)."""
    with torch.no_grad():
        found = [
            model(**batch_of(batch)).logits.numpy() for batch in parts(list(range(count)), size)
        ]
    return np.concatenate(found)


def _metrics(found: np.ndarray, labels: Any, regression: bool) -> dict[str, float]:
    metrics = [Pearson(), Spearman()] if regression else []
    if found.shape[1] == 2:
        metrics = [F1(), Matthews()]
    for metric in metrics:
        metric.update_state(labels, found)
    result = {metric.name: round(float(metric.result()), 4) for metric in metrics}
    accuracy = {} if regression else {"accuracy": float(np.mean(found.argmax(-1) == labels))}
    return {**accuracy, **result}


def main() -> None:
    recipe = arguments(__doc__)
    data, settings = recipe.data, recipe.train
    directory = resolve(recipe.model.path)
    texts, labels = _rows(data, "train")
    dev_texts, dev_labels = _rows(data, "dev")
    regression = recipe.task == "TextRegressor"
    names = list(data.labels) if data.labels else sorted(set(labels))
    to_label = float if regression else names.index

    torch.manual_seed(settings.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=1 if regression else len(names)
    )

    def encoded(rows: list[tuple[str, ...]], given: list[str]) -> Callable[[list[int]], dict]:
        def batch_of(batch: list[int]) -> dict:
            columns = map(list, zip(*(rows[i] for i in batch), strict=True))
            length = recipe.model.max_length
            options = dict(padding=True, truncation=True, max_length=length, return_tensors="pt")
            found = tokenizer(*columns, **options)
            return {**found, "labels": torch.tensor([to_label(given[i]) for i in batch])}

        return batch_of

    lengths = [sum(len(text.encode()) for text in row) for row in texts]
    cost = train(model, settings, lengths, encoded(texts, labels))
    found = logits(model, len(dev_texts), encoded(dev_texts, dev_labels))
    gold = np.array([to_label(label) for label in dev_labels])
    print(json.dumps({**_metrics(found, gold, regression), **cost}))


if __name__ == "__main__":
    main()
