"""The reference's training loop: batches, optimizer, schedule."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

IGNORED = -100  # a target that the reference's loss ignores

# The result of fine-tuning: a function from a split's name to its metrics, and the cost of
# training.
Outcome = tuple[Callable[[str], dict[str, float]], dict[str, Any]]


# Training -------------------------------------------------------------------------------------


def in_chunks(values: list, size: int) -> list[list]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _by_length(lengths: list[int], size: int, window: int = 32) -> list[list[int]]:
    """Batches as in bertfam_tf.data.shuffled_batches."""
    batches = []
    for some in in_chunks(torch.randperm(len(lengths)).tolist(), window * size):
        batches += in_chunks(sorted(some, key=lambda i: lengths[i]), size)
    return [batches[i] for i in torch.randperm(len(batches)).tolist()]


def train_model(
    model: Any, settings: Any, lengths: list[int], batch_of: Callable[[list[int]], dict]
) -> dict[str, Any]:
    """Fine-tunes like ``bertfam train``, and returns the time.

    Args:
        model: a transformers model with a ``loss``.
        settings: the recipe's section ``train``.
        lengths: the number of bytes of each example.
        batch_of: maps the indices of a batch's examples to the model's arguments.
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


def all_logits(
    model: Any, count: int, batch_of: Callable[[list[int]], dict], size: int = 64
) -> Any:
    """The logits of all examples, float32 (examples, labels)."""
    with torch.no_grad():
        found = [
            model(**batch_of(batch)).logits.numpy() for batch in in_chunks(list(range(count)), size)
        ]
    return np.concatenate(found)
