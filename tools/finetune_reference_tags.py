"""Fine-tunes a tagger with the reference implementation by one of our recipes.

    BERTFAM_DATA=… python -m tools.finetune_reference_tags configs/bert/conll2003.yaml [key=value …]

Words are split by the Hugging Face tokenizer, and the first piece of each has its tag. Prints the
scores of the dev split's entities and the time; ``--split test`` adds those of the test split.
"""

import json
from typing import Any

import torch
import transformers

from bertfam_tf.metrics import entity_scores
from bertfam_tf.sources import resolve
from bertfam_tf.train.run import read_split
from tools.finetune_reference import command_line, parts, recipe_of, train

_IGNORED = -100


def _read(data: Any, split: str) -> tuple[list[list[str]], list[list[str]]]:
    """The words and the tags of each sentence."""
    rows = list(read_split(data, split, "TokenTagger").as_numpy_iterator())
    return [x["text"].decode().split() for x, _ in rows], [y.decode().split() for _, y in rows]


def _first_pieces(encoded: Any, row: int, length: int) -> list[int]:
    """The position of each word's first piece, -1 for words that were cut or have none."""
    found = [-1] * length
    for position, word in reversed(list(enumerate(encoded.word_ids(row)))):
        if word is not None:
            found[word] = position
    return found


def _targets(encoded: Any, tags: list[list[int]]) -> torch.Tensor:
    targets = torch.full(encoded["input_ids"].shape, _IGNORED)
    for row, numbers in enumerate(tags):
        for place, number in zip(_first_pieces(encoded, row, len(numbers)), numbers, strict=True):
            if place >= 0:
                targets[row, place] = number
    return targets


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--split", choices=["test"])
    given = parser.parse_args()
    recipe = recipe_of(given)
    directory = resolve(recipe.model.path)
    words, tags = _read(recipe.data, "train")
    names = sorted({tag for row in tags for tag in row})
    numbers = [[names.index(tag) for tag in row] for row in tags]
    torch.manual_seed(recipe.train.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, add_prefix_space=True)
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        directory, num_labels=len(names)
    )

    def encode(rows: list[list[str]]) -> Any:
        return tokenizer(
            rows,
            is_split_into_words=True,
            padding=True,
            truncation=True,
            max_length=recipe.model.max_length,
            return_tensors="pt",
        )

    def batch_of(batch: list[int]) -> dict:
        encoded = encode([words[i] for i in batch])
        return {**encoded, "labels": _targets(encoded, [numbers[i] for i in batch])}

    def scores(split: str) -> dict[str, float]:
        rows, wanted = _read(recipe.data, split)
        found = []
        for batch in parts(rows, 64):
            encoded = encode(batch)
            with torch.no_grad():
                chosen = model(**encoded).logits.argmax(-1).tolist()
            for row, sentence in enumerate(batch):
                places = _first_pieces(encoded, row, len(sentence))
                found.append([names[chosen[row][p]] if p >= 0 else "O" for p in places])
        return entity_scores(wanted, found)

    lengths = [len(" ".join(row).encode()) for row in words]
    spent = train(model, recipe.train, lengths, batch_of)
    found = scores("dev")
    if given.split:
        found |= {f"test_{name}": value for name, value in scores("test").items()}
    print(json.dumps({**found, **spent}))


if __name__ == "__main__":
    main()
