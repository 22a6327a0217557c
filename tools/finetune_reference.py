"""Fine-tunes a classifier with the reference implementation by one of our recipes.

    BERTFAM_DATA=… python -m tools.finetune_reference configs/bert/sst2.yaml [key=value …]

Same checkpoint, rows, batch size, optimizer and schedule as ``bertfam train``; torch and
transformers (tools/requirements.txt) do the rest. Prints the dev accuracy and the time.
"""

import argparse
import json
import time

import torch
import transformers

from bertfam_tf.config import expand, load_recipe
from bertfam_tf.sources import resolve


def _rows(data, split: str) -> tuple[list[str], list[int]]:
    lines = expand(getattr(data, split)).read_text("utf-8").removesuffix("\n").split("\n")
    header = lines[0].split("\t")
    text, label = header.index(data.text), header.index(data.label)
    cells = [line.split("\t") for line in lines[1:]]
    if split == "train":
        cells = cells[: data.limit]
    names = list(data.labels) if data.labels else sorted({row[label] for row in cells})
    return [row[text] for row in cells], [names.index(row[label]) for row in cells]


def _batches(order, size):
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _by_length(texts: list[str], size: int, window: int = 32) -> list[list[int]]:
    """Batches as bertfam_tf.data.shuffled_batches makes them."""
    drawn = torch.randperm(len(texts)).tolist()
    batches = []
    for part in _batches(drawn, window * size):
        order = sorted(part, key=lambda i: len(texts[i].encode()))
        batches += _batches(order, size)
    return [batches[i] for i in torch.randperm(len(batches)).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("override", nargs="*")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe, options.override)
    settings = recipe.train
    directory = resolve(recipe.model.path)
    texts, labels = _rows(recipe.data, "train")
    dev_texts, dev_labels = _rows(recipe.data, "dev")

    torch.manual_seed(settings.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=len(set(labels))
    )
    plain = [n for n, _ in model.named_parameters() if "bias" in n or "LayerNorm" in n]
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [p for n, p in model.named_parameters() if n not in plain],
                "weight_decay": settings.weight_decay,
            },
            {
                "params": [p for n, p in model.named_parameters() if n in plain],
                "weight_decay": 0.0,
            },
        ],
        lr=settings.learning_rate,
        betas=(0.9, settings.beta_2),
        eps=settings.epsilon,
    )
    steps = -(-len(texts) // settings.batch_size) * settings.epochs
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(settings.warmup * steps), steps
    )

    def encode(rows: list[str]):
        return tokenizer(
            rows,
            padding=True,
            truncation=True,
            max_length=recipe.model.max_length,
            return_tensors="pt",
        )

    start = time.perf_counter()
    model.train()
    for epoch in range(settings.epochs):
        for batch in _by_length(texts, settings.batch_size):
            loss = model(
                **encode([texts[i] for i in batch]), labels=torch.tensor([labels[i] for i in batch])
            ).loss
            loss.backward()
            if settings.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.4f}", flush=True)
    trained = time.perf_counter() - start
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in _batches(list(range(len(dev_texts))), 64):
            found = model(**encode([dev_texts[i] for i in batch])).logits.argmax(-1).tolist()
            right += sum(f == dev_labels[i] for f, i in zip(found, batch, strict=True))
    print(
        json.dumps(
            {"accuracy": right / len(dev_texts), "train_seconds": round(trained, 1), "steps": steps}
        )
    )


if __name__ == "__main__":
    main()
