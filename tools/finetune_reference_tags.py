"""Fine-tunes a tagger with the reference implementation, as ``tools.finetune_reference`` does.

    python -m tools.finetune_reference_tags MODEL TRAIN TEST [--limit 64] [--epochs 3] …

Files have a word and its tag, the first and the last column, on a line, and a blank line behind
each sentence, as CoNLL-2003's. The first piece of each word has its tag. AdamW, schedule and order
of the rows are those of ``bertfam train``; torch and transformers (tools/requirements.txt) do the
rest. Prints the entity scores of ``bertfam_tf.metrics`` and the time.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import transformers

from bertfam_tf.metrics import entity_scores
from bertfam_tf.sources import resolve
from tools.finetune_reference import _batches, _by_length

_IGNORED = -100


def _read(file: str) -> tuple[list[list[str]], list[list[str]]]:
    """The words and the tags of each sentence."""
    words, tags = [], []
    for block in Path(file).read_text("utf-8").split("\n\n"):
        rows = [line.split() for line in block.split("\n") if line.strip()]
        rows = [row for row in rows if row[0] != "-DOCSTART-"]
        if rows:
            words.append([row[0] for row in rows])
            tags.append([row[-1] for row in rows])
    return words, tags


def _first_pieces(encoded, row: int, length: int) -> list[int]:
    """The position of each word's first piece, -1 for words that were cut or have none."""
    found = [-1] * length
    for position, word in reversed(list(enumerate(encoded.word_ids(row)))):
        if word is not None:
            found[word] = position
    return found


def _targets(encoded, tags: list[list[int]]) -> torch.Tensor:
    targets = torch.full(encoded["input_ids"].shape, _IGNORED)
    for row, numbers in enumerate(tags):
        for place, number in zip(_first_pieces(encoded, row, len(numbers)), numbers, strict=True):
            if place >= 0:
                targets[row, place] = number
    return targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--limit", type=int, help="sentences read of each file")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup", type=float, default=0.1)
    parser.add_argument("--beta-2", type=float, default=0.999)
    parser.add_argument("--epsilon", type=float, default=1e-6)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    directory = resolve(options.model)
    words, tags = (part[: options.limit] for part in _read(options.train))
    test_words, test_tags = (part[: options.limit] for part in _read(options.test))
    names = sorted({tag for row in tags for tag in row})
    numbers = [[names.index(tag) for tag in row] for row in tags]

    torch.manual_seed(options.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, add_prefix_space=True)
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        directory, num_labels=len(names)
    )
    plain = [n for n, _ in model.named_parameters() if "bias" in n or "LayerNorm" in n]
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if (n in plain) == without],
            "weight_decay": 0.0 if without else options.weight_decay,
        }
        for without in (False, True)
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=options.learning_rate, betas=(0.9, options.beta_2), eps=options.epsilon
    )
    steps = -(-len(words) // options.batch_size) * options.epochs
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(options.warmup * steps), steps
    )

    def encode(rows: list[list[str]]):
        return tokenizer(
            rows,
            is_split_into_words=True,
            padding=True,
            truncation=True,
            max_length=options.max_length,
            return_tensors="pt",
        )

    start = time.perf_counter()
    model.train()
    texts = [" ".join(row) for row in words]
    for epoch in range(options.epochs):
        for batch in _by_length(texts, options.batch_size):
            encoded = encode([words[i] for i in batch])
            loss = model(**encoded, labels=_targets(encoded, [numbers[i] for i in batch])).loss
            loss.backward()
            if options.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.4f}", flush=True)
    trained = time.perf_counter() - start

    model.eval()
    found = []
    with torch.no_grad():
        for batch in _batches(list(range(len(test_words))), 64):
            encoded = encode([test_words[i] for i in batch])
            chosen = model(**encoded).logits.argmax(-1).tolist()
            for row, i in enumerate(batch):
                places = _first_pieces(encoded, row, len(test_words[i]))
                found.append([names[chosen[row][p]] if p >= 0 else "O" for p in places])
    scores = entity_scores(test_tags, found)
    print(json.dumps({**scores, "train_seconds": round(trained, 1), "steps": steps}))


if __name__ == "__main__":
    main()
