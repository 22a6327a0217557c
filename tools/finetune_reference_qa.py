"""Fine-tunes on questions to a text with the reference implementation by one of our recipes.

    BERTFAM_DATA=… python -m tools.finetune_reference_qa configs/bert/tydiqa.yaml [key=value …]

Windows are the Hugging Face tokenizer's; those without the whole answer are trained to the cls
token, and padding is no place that an answer could have. A batch is ``train.batch_size`` questions
with all their windows, and the answer is the best span of all of them. Defaults of the recipe's
``options`` are those of ``SpanQA``. Prints exact match and F1 of the dev split in percent and the
time; ``--split test`` adds ``test_exact_match`` and ``test_f1``.
"""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from bertfam_tf.metrics import exact_match, f1
from bertfam_tf.sources import resolve
from bertfam_tf.train.run import read_split
from tools.finetune_reference import command_line, parts, recipe_of, train

_DEFAULTS = {"max_question": 64, "max_answer": 30, "stride": 128, "null_threshold": None}


class Question(NamedTuple):
    """``start`` is the answer's first character, -1 for none; ``answers`` are all gold ones."""

    text: str
    context: str
    answer: str
    start: int
    answers: list[str]


class Window(NamedTuple):
    """A row of the tokenizer's: which question it belongs to, and where its pieces stand.

    Fields:
        question: its number in the batch.
        places: the context's pieces in the row, (pieces,).
        offsets: their characters of the context, (pieces, 2).
        null: the cls token's place.
    """

    question: int
    places: np.ndarray
    offsets: np.ndarray
    null: int


def _read(data: Any, split: str) -> list[Question]:
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


class Reader:
    """Cuts questions and contexts into windows.

    Args:
        tokenizer: a fast one.
        max_length, stride, max_question: as ``SpanQA`` takes them.
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

    def _cut(self, question: str) -> str:
        pieces = self._tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)
        offsets = pieces["offset_mapping"][: self._max_question]
        return question[: offsets[-1][1]] if offsets else ""

    def __call__(self, rows: list[Question]) -> tuple[dict[str, torch.Tensor], list[Window]]:
        """The model's inputs, (windows, longest), and what they are."""
        found = self._tokenizer(
            [self._cut(row.text) for row in rows], [row.context for row in rows], **self._options
        )
        windows = []
        for i, question in enumerate(found["overflow_to_sample_mapping"].tolist()):
            sequences = found.sequence_ids(i)
            places = np.flatnonzero([sequence == 1 for sequence in sequences])
            cls = found["input_ids"][i].numpy() == self._tokenizer.cls_token_id
            null = np.flatnonzero(cls & [sequence is None for sequence in sequences])[0]
            offsets = found["offset_mapping"][i].numpy()[places]
            windows.append(Window(question, places, offsets, int(null)))
        names = self._tokenizer.model_input_names
        return {name: found[name] for name in names if name in found}, windows


class OfRealPlaces(torch.nn.Module):
    """A model with a loss over the places of its windows; transformers' own counts padding too.

    Args:
        model: for question answering.
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
            torch.nn.functional.cross_entropy(values.masked_fill(padding, -torch.inf), places)
            for values, places in zip(logits, (start_positions, end_positions), strict=True)
        ]
        return SimpleNamespace(loss=sum(losses) / 2)


def _target(window: Window, row: Question) -> tuple[int, int]:
    """Places of the answer's first piece and of its last."""
    begin = row.start + len(row.answer) - len(row.answer.lstrip())
    behind = begin + len(row.answer.strip())
    starts, ends = window.offsets.T
    covered = window.places[(ends > begin) & (starts < behind)]
    if begin == behind or not covered.size or starts.min() > begin or ends.max() < behind:
        return window.null, window.null
    return int(covered[0]), int(covered[-1])


def _most_context(windows: list[Window], stride: int) -> Iterator[np.ndarray]:
    """Of each window of one document, bool (pieces,), whether no other has more around a piece."""
    sizes = [len(window.places) for window in windows]
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
    """The highest sum of a window's logits, (pieces,), and between which pieces it is."""
    start = np.where(may_start, start, -np.inf)
    end = np.pad(end, (0, longest - 1), constant_values=-np.inf)
    sums = start[:, None] + np.lib.stride_tricks.sliding_window_view(end, longest)
    first, more = np.unravel_index(sums.argmax(), sums.shape)
    return float(sums[first, more]), int(first), int(first + more)


def _answer(
    row: Question, windows: list[Window], start: np.ndarray, end: np.ndarray, options: dict
) -> str:
    """The answer to one question; logits are (windows, longest)."""
    best, answer = -np.inf, ""
    for i, may_start in enumerate(_most_context(windows, options["stride"])):
        at = windows[i].places
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


def _answers(model: Any, reader: Reader, rows: list[Question], options: dict) -> list[str]:
    found = []
    for some in parts(rows, 16):
        inputs, windows = reader(some)
        with torch.no_grad():
            outputs = [
                model(**{name: values[at] for name, values in inputs.items()})
                for at in parts(list(range(len(windows))), 32)
            ]
        start = torch.cat([output.start_logits for output in outputs]).numpy()
        end = torch.cat([output.end_logits for output in outputs]).numpy()
        for number, row in enumerate(some):
            own = [i for i, window in enumerate(windows) if window.question == number]
            found.append(_answer(row, [windows[i] for i in own], start[own], end[own], options))
    return found


def _scores(found: list[str], rows: list[Question]) -> dict[str, float]:
    return {
        metric.__name__: 100
        * float(np.mean([metric(a, row.answers) for a, row in zip(found, rows, strict=True)]))
        for metric in (exact_match, f1)
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--split", choices=["dev", "test"], default="dev")
    given = parser.parse_intermixed_args()
    recipe = recipe_of(given)
    directory = resolve(recipe.model.path)
    length = recipe.model.max_length or 384
    options = {
        **_DEFAULTS,
        "stride": min(_DEFAULTS["stride"], length // 3),
        "max_question": min(_DEFAULTS["max_question"], length // 6),
        **recipe.options,
    }
    splits = {
        name: _read(recipe.data, name)
        for name in dict.fromkeys(["train", "dev", given.split])
        if getattr(recipe.data, name) is not None
    }

    rows = splits.pop("train")
    torch.manual_seed(recipe.train.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory)
    reader = Reader(tokenizer, length, options["stride"], options["max_question"])

    def batch_of(batch: list[int]) -> dict[str, torch.Tensor]:
        inputs, windows = reader([rows[i] for i in batch])
        places = torch.tensor([_target(w, rows[batch[w.question]]) for w in windows])
        return {**inputs, "start_positions": places[:, 0], "end_positions": places[:, 1]}

    lengths = [len(row.text.encode()) + len(row.context.encode()) for row in rows]
    cost = train(OfRealPlaces(model), recipe.train, lengths, batch_of)
    scores = {}
    for name, split in splits.items():
        prefix = "" if name == "dev" else f"{name}_"
        found = _scores(_answers(model, reader, split, options), split)
        scores |= {prefix + metric: round(value, 2) for metric, value in found.items()}
    print(json.dumps({**scores, **cost}))


if __name__ == "__main__":
    main()
