"""Fine-tunes with one of our recipes and the reference implementation.

    python -m tests.support.finetune_reference configs/bert/sst2.yaml [key=value …] [--split test]

Uses the same checkpoint, examples, batch size, optimizer and schedule as ``bertfam train``, with
torch and transformers (tools/requirements.txt). ``TASKS`` has the supported tasks. Prints the dev
split's metrics and the time; ``--split test`` adds those of the test split, with the prefix
``test_``.
"""

import argparse
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from bertfam_tf.metrics import (
    F1,
    Matthews,
    Pearson,
    Spearman,
    entity_scores,
    exact_match,
    f1,
)
from bertfam_tf.recipes import read_split
from bertfam_tf.recipes.reading import expand, load_recipe
from bertfam_tf.sources import resolve
from tests.support.finetune_loop import IGNORED, Outcome, all_logits, in_chunks, train_model

_SPAN_DEFAULTS = {"max_question": 64, "max_answer": 30, "stride": 128, "null_threshold": None}


# Sequence classification and regression -------------------------------------------------------


def read_texts(data: Any, split: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """The one or two texts of each example, and the labels as strings."""
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


def scores_of(found: np.ndarray, labels: Any, regression: bool) -> dict[str, float]:
    metrics = [Pearson(), Spearman()] if regression else []
    if found.shape[1] == 2:
        metrics = [F1(), Matthews()]
    for metric in metrics:
        metric.update_state(labels, found)
    result = {metric.name: round(float(metric.result()), 4) for metric in metrics}
    accuracy = {} if regression else {"accuracy": float(np.mean(found.argmax(-1) == labels))}
    return {**accuracy, **result}


def fine_tune_texts(recipe: Any) -> Outcome:
    """Fine-tunes a sequence classifier; for ``TextRegressor`` with one output."""
    data, settings = recipe.data, recipe.train
    directory = resolve(recipe.model.path)
    texts, labels = read_texts(data, "train")
    regression = recipe.task == "TextRegressor"
    names = list(data.labels) if data.labels else sorted(set(labels))
    to_label = float if regression else names.index

    torch.manual_seed(settings.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=1 if regression else len(names)
    )

    def encoded(texts: list[tuple[str, ...]], given: list[str]) -> Callable[[list[int]], dict]:
        def batch_of(batch: list[int]) -> dict:
            columns = map(list, zip(*(texts[i] for i in batch), strict=True))
            length = recipe.model.max_length
            options = dict(padding=True, truncation=True, max_length=length, return_tensors="pt")
            found = tokenizer(*columns, **options)
            return {**found, "labels": torch.tensor([to_label(given[i]) for i in batch])}

        return batch_of

    def scores(split: str) -> dict[str, float]:
        texts, labels = read_texts(data, split)
        found = all_logits(model, len(texts), encoded(texts, labels))
        return scores_of(found, np.array([to_label(label) for label in labels]), regression)

    lengths = [sum(len(text.encode()) for text in example) for example in texts]
    return scores, train_model(model, settings, lengths, encoded(texts, labels))


# Tags -----------------------------------------------------------------------------------------


def read_words(data: Any, split: str) -> tuple[list[list[str]], list[list[str]]]:
    """The words and the tags of each sentence."""
    pairs = list(read_split(data, split, "TokenTagger").as_numpy_iterator())
    return [x["text"].decode().split() for x, _ in pairs], [y.decode().split() for _, y in pairs]


def _first_pieces(encoded: Any, row: int, length: int) -> list[int]:
    """The position of each word's first piece, -1 for words that were truncated or have none."""
    found = [-1] * length
    for position, word in reversed(list(enumerate(encoded.word_ids(row)))):
        if word is not None:
            found[word] = position
    return found


def _targets(encoded: Any, tags: list[list[int]]) -> torch.Tensor:
    targets = torch.full(encoded["input_ids"].shape, IGNORED)
    for row, ids in enumerate(tags):
        for position, tag in zip(_first_pieces(encoded, row, len(ids)), ids, strict=True):
            if position >= 0:
                targets[row, position] = tag
    return targets


def fine_tune_tagger(recipe: Any) -> Outcome:
    """Fine-tunes a tagger; the first piece of each word is labelled."""
    directory = resolve(recipe.model.path)
    words, tags = read_words(recipe.data, "train")
    names = sorted({tag for sentence in tags for tag in sentence})
    ids = [[names.index(tag) for tag in sentence] for sentence in tags]
    torch.manual_seed(recipe.train.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, add_prefix_space=True)
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        directory, num_labels=len(names)
    )

    def encode(sentences: list[list[str]]) -> Any:
        return tokenizer(
            sentences,
            is_split_into_words=True,
            padding=True,
            truncation=True,
            max_length=recipe.model.max_length,
            return_tensors="pt",
        )

    def batch_of(batch: list[int]) -> dict:
        encoded = encode([words[i] for i in batch])
        return {**encoded, "labels": _targets(encoded, [ids[i] for i in batch])}

    def scores(split: str) -> dict[str, float]:
        sentences, gold = read_words(recipe.data, split)
        found = []
        for batch in in_chunks(sentences, 64):
            encoded = encode(batch)
            with torch.no_grad():
                chosen = model(**encoded).logits.argmax(-1).tolist()
            for row, sentence in enumerate(batch):
                positions = _first_pieces(encoded, row, len(sentence))
                found.append([names[chosen[row][p]] if p >= 0 else "O" for p in positions])
        return entity_scores(gold, found)

    lengths = [len(" ".join(sentence).encode()) for sentence in words]
    return scores, train_model(model, recipe.train, lengths, batch_of)


# Multiple choice ------------------------------------------------------------------------------


def _passages(path: Path) -> Iterator[dict]:
    archive = next((p for p in (path, *path.parents) if p.is_file()), None)
    if archive is None:
        for file in sorted(path.rglob("*.txt")):
            yield json.loads(file.read_bytes())
        return
    with tarfile.open(archive) as members:
        inside = str(path.relative_to(archive)).removeprefix(".")
        # In the archive's order, like ours: ``data.limit`` takes the first ones.
        for member in members:
            if member.isfile() and f"/{inside}/" in f"/{member.name}":
                yield json.load(members.extractfile(member))


def read_questions(data: Any, split: str) -> list[tuple[str, str, list[str], int]]:
    """Articles, a question on each, its options, and the index of the correct one.

    ``data.train`` and ``data.dev`` are folders of passages, or of an archive, such as
    ``race-middle.tar.gz/RACE/train/middle``.
    """
    found = [
        (passage["article"], question, options, "ABCD".index(answer))
        for passage in _passages(expand(getattr(data, split)))
        for question, options, answer in zip(
            passage["questions"], passage["options"], passage["answers"], strict=True
        )
    ]
    return found[: data.limit] if split == "train" else found


def fine_tune_choice(recipe: Any) -> Outcome:
    """Fine-tunes on the inputs of ``MultipleChoice``: truncated article, question and option."""
    directory = resolve(recipe.model.path)
    examples = read_questions(recipe.data, "train")
    torch.manual_seed(recipe.train.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(directory)
    options = dict(padding=True, truncation="only_first", max_length=recipe.model.max_length)

    def encoded(examples: list) -> Callable[[list[int]], dict]:
        def batch_of(batch: list[int]) -> dict:
            articles = [examples[i][0] for i in batch for _ in examples[i][2]]
            choices = [f"{examples[i][1]} {option}" for i in batch for option in examples[i][2]]
            found = tokenizer(articles, choices, return_tensors="pt", **options)
            inputs = {k: v.reshape(len(batch), -1, v.shape[-1]) for k, v in found.items()}
            return {**inputs, "labels": torch.tensor([examples[i][3] for i in batch])}

        return batch_of

    def scores(split: str) -> dict[str, float]:
        examples = read_questions(recipe.data, split)
        found = all_logits(model, len(examples), encoded(examples), size=16).argmax(-1)
        return {"accuracy": float(np.mean(found == [right for *_, right in examples]))}

    lengths = [sum(len(text.encode()) for text in (a, q, *o)) for a, q, o, _ in examples]
    return scores, train_model(model, recipe.train, lengths, encoded(examples))


# Spans ----------------------------------------------------------------------------------------


class Question(NamedTuple):
    """``start`` is the answer's first character, -1 for none; ``answers`` are all gold answers."""

    text: str
    context: str
    answer: str
    start: int
    answers: list[str]


class Window(NamedTuple):
    """A window: one sequence of the tokenizer, and the positions of its pieces.

    Attributes:
        question: the index of the question in the batch.
        positions: the positions of the context's pieces in the sequence, (pieces,).
        offsets: the offsets of these pieces in the context, in characters, (pieces, 2).
        null: the position of the cls token.
    """

    question: int
    positions: np.ndarray
    offsets: np.ndarray
    null: int


def _read_questions(data: Any, split: str) -> list[Question]:
    return [
        Question(
            x["question"].decode("utf-8", "replace"),
            x["context"].decode("utf-8", "replace"),
            y["answer"].decode(),
            int(y["answer_start"]),
            [answer.decode() for answer in y["answers"]],
        )
        for x, y in read_split(data, split, "SpanQA").as_numpy_iterator()
    ]


class WindowReader:
    """Splits questions and contexts into windows.

    Args:
        tokenizer: a fast tokenizer.
        max_length, stride, max_question: as for ``SpanQA``.
    """

    def __init__(self, tokenizer: Any, max_length: int, stride: int, max_question: int):
        self._tokenizer = tokenizer
        self._max_question = max_question
        self._options = dict(
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            padding=True,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_tensors="pt",
        )

    def _truncated(self, question: str) -> str:
        pieces = self._tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)
        offsets = pieces["offset_mapping"][: self._max_question]
        return question[: offsets[-1][1]] if offsets else ""

    def __call__(self, questions: list[Question]) -> tuple[dict[str, torch.Tensor], list[Window]]:
        """The model's inputs, (windows, length), and the windows."""
        found = self._tokenizer(
            [self._truncated(q.text) for q in questions],
            [q.context for q in questions],
            **self._options,
        )
        windows = []
        for i, question in enumerate(found["overflow_to_sample_mapping"].tolist()):
            sequences = found.sequence_ids(i)
            positions = np.flatnonzero([sequence == 1 for sequence in sequences])
            cls = found["input_ids"][i].numpy() == self._tokenizer.cls_token_id
            null = np.flatnonzero(cls & [sequence is None for sequence in sequences])[0]
            offsets = found["offset_mapping"][i].numpy()[positions]
            windows.append(Window(question, positions, offsets, int(null)))
        names = self._tokenizer.model_input_names
        return {name: found[name] for name in names if name in found}, windows


class WithoutPadding(torch.nn.Module):
    """A model whose loss excludes padding from the softmax; that of transformers includes it.

    Args:
        model: a model for question answering.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(
        self, start_positions: torch.Tensor, end_positions: torch.Tensor, **inputs: torch.Tensor
    ) -> SimpleNamespace:
        """``loss``, the mean of start's and end's cross-entropy."""
        found = self.model(**inputs)
        padding = inputs["attention_mask"] == 0
        logits = (found.start_logits, found.end_logits)
        losses = [
            torch.nn.functional.cross_entropy(values.masked_fill(padding, -torch.inf), positions)
            for values, positions in zip(logits, (start_positions, end_positions), strict=True)
        ]
        return SimpleNamespace(loss=sum(losses) / 2)


def _span_target(window: Window, row: Question) -> tuple[int, int]:
    """Positions of the answer's first and last piece, or of the cls token if it is not complete."""
    begin = row.start + len(row.answer) - len(row.answer.lstrip())
    stop = begin + len(row.answer.strip())
    starts, ends = window.offsets.T
    covered = window.positions[(ends > begin) & (starts < stop)]
    if begin == stop or not covered.size or starts.min() > begin or ends.max() < stop:
        return window.null, window.null
    return int(covered[0]), int(covered[-1])


def _most_context(windows: list[Window], stride: int) -> Iterator[np.ndarray]:
    """For each window, bool (pieces,): whether it has the most context for a piece."""
    sizes = [len(window.positions) for window in windows]
    firsts = np.cumsum([0, *(size - stride for size in sizes[:-1])])
    around = np.full((len(sizes), firsts[-1] + sizes[-1]), -1.0)
    for row, first, size in zip(around, firsts, sizes, strict=True):
        before = np.arange(size)
        row[first : first + size] = np.minimum(before, before[::-1]) + 0.01 * size
    best = around.argmax(0)
    for number, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
        yield best[first : first + size] == number


def _best_span(
    start: np.ndarray, end: np.ndarray, may_start: np.ndarray, longest: int
) -> tuple[float, int, int]:
    """The highest sum of a window's logits, (pieces,), and its first and last piece."""
    start = np.where(may_start, start, -np.inf)
    end = np.pad(end, (0, longest - 1), constant_values=-np.inf)
    sums = start[:, None] + np.lib.stride_tricks.sliding_window_view(end, longest)
    first, more = np.unravel_index(sums.argmax(), sums.shape)
    return float(sums[first, more]), int(first), int(first + more)


def _answer(
    row: Question, windows: list[Window], start: np.ndarray, end: np.ndarray, options: dict
) -> str:
    """The answer to one question; logits are (windows, length)."""
    best, answer = -np.inf, ""
    for i, may_start in enumerate(_most_context(windows, options["stride"])):
        at = windows[i].positions
        if may_start.any():
            score, first, last = _best_span(
                start[i, at], end[i, at], may_start, options["max_answer"]
            )
            if score > best:
                offsets = windows[i].offsets
                best, answer = score, row.context[offsets[first, 0] : offsets[last, 1]].strip()
    if options["null_threshold"] is not None:
        null = min(start[i, w.null] + end[i, w.null] for i, w in enumerate(windows))
        return "" if null - best > options["null_threshold"] else answer
    return answer


def _answers(
    model: Any, reader: WindowReader, questions: list[Question], options: dict
) -> list[str]:
    found = []
    for some in in_chunks(questions, 16):
        inputs, windows = reader(some)
        with torch.no_grad():
            outputs = [
                model(**{name: values[at] for name, values in inputs.items()})
                for at in in_chunks(list(range(len(windows))), 32)
            ]
        start = torch.cat([output.start_logits for output in outputs]).numpy()
        end = torch.cat([output.end_logits for output in outputs]).numpy()
        for number, row in enumerate(some):
            own = [i for i, window in enumerate(windows) if window.question == number]
            found.append(_answer(row, [windows[i] for i in own], start[own], end[own], options))
    return found


def _span_scores(found: list[str], questions: list[Question]) -> dict[str, float]:
    return {
        metric.__name__: 100
        * float(np.mean([metric(a, q.answers) for a, q in zip(found, questions, strict=True)]))
        for metric in (exact_match, f1)
    }


def fine_tune_spans(recipe: Any) -> Outcome:
    """Fine-tunes on windows of the Hugging Face tokenizer; batches have all windows of questions.

    The target of windows without the complete answer is the cls token. The answer is the best span
    of all windows. The defaults of the recipe's ``options`` are those of ``SpanQA``.
    """
    directory = resolve(recipe.model.path)
    length = recipe.model.max_length or 384
    options = {
        **_SPAN_DEFAULTS,
        "stride": min(_SPAN_DEFAULTS["stride"], length // 3),
        "max_question": min(_SPAN_DEFAULTS["max_question"], length // 6),
        **recipe.options,
    }
    questions = _read_questions(recipe.data, "train")
    torch.manual_seed(recipe.train.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory)
    reader = WindowReader(tokenizer, length, options["stride"], options["max_question"])

    def batch_of(batch: list[int]) -> dict[str, torch.Tensor]:
        inputs, windows = reader([questions[i] for i in batch])
        spans = [_span_target(w, questions[batch[w.question]]) for w in windows]
        targets = torch.tensor(spans)  # (windows, 2)
        return {**inputs, "start_positions": targets[:, 0], "end_positions": targets[:, 1]}

    def scores(split: str) -> dict[str, float]:
        asked = _read_questions(recipe.data, split)
        found = _span_scores(_answers(model, reader, asked, options), asked)
        return {name: round(value, 2) for name, value in found.items()}

    lengths = [len(q.text.encode()) + len(q.context.encode()) for q in questions]
    return scores, train_model(WithoutPadding(model), recipe.train, lengths, batch_of)


# Command line ---------------------------------------------------------------------------------

TASKS: dict[str, Callable[[Any], Outcome]] = {
    "TextClassifier": fine_tune_texts,
    "TextRegressor": fine_tune_texts,
    "TokenTagger": fine_tune_tagger,
    "MultipleChoice": fine_tune_choice,
    "SpanQA": fine_tune_spans,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("override", nargs="*")
    parser.add_argument("--split", choices=["dev", "test"], default="dev")
    given = parser.parse_intermixed_args()
    recipe = load_recipe(given.recipe, given.override)
    if recipe.task not in TASKS:
        parser.error(f"{recipe.task} is not supported; tasks are {', '.join(TASKS)}")
    scores, cost = TASKS[recipe.task](recipe)
    found = {}
    for split in dict.fromkeys(["dev", given.split]):
        if getattr(recipe.data, split) is not None:
            prefix = "" if split == "dev" else f"{split}_"
            found |= {prefix + name: value for name, value in scores(split).items()}
    print(json.dumps({**found, **cost}))


if __name__ == "__main__":
    main()
