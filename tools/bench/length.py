"""Measures the time and memory that one text takes, against its length.

    python -m tools.bench.length                    # writes tools/results/length.md
    python -m tools.bench.length --longest          # also 10 MB of each tokenizer's slowest kind
    python -m tools.bench.length --quick roberta-base   # short texts; writes nothing

Published vocabularies, one thread, process time. Each kind of text is tokenized with offsets. Tasks
are measured without their models: the time for the text is from the text to the model's inputs, and
from its outputs, which are zeros here, to the answers. An exponent of 1 is linear time.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import datetime
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from bertfam_serve.request_limits import RequestLimits
from tests.support import texts
from tests.support.compare_tokenizers import markdown
from tests.support.subjects import SUBJECTS
from tools.bench import machine

RESULT = texts.ROOT / "tools" / "results" / "length.md"
SIZES = (10**4, 10**5, 10**6)
LONGEST = 10**7
# One for each algorithm.
TOKENIZERS = (
    *("bert-base-uncased", "roberta-base", "albert-base-v2", "xlnet-base-cased"),
    *("openai-gpt", "xlm-mlm-xnli15-1024"),
)
TASK_KINDS = ("sentences", "spaces", "words of one letter", "punctuation", "Hangul")
_REPEATS = 2
_RESET_PEAK = "5"


def _repeated(unit: str | bytes) -> Callable[[int], bytes]:
    data = unit.encode() if isinstance(unit, str) else unit
    return lambda size: (data * (size // len(data) + 1))[:size]


def _random(first: int, last: int) -> Callable[[int], bytes]:
    def text(size: int) -> bytes:
        rng = random.Random(0)
        count = size // len(chr(last).encode())
        return "".join(map(chr, rng.choices(range(first, last + 1), k=count))).encode()

    return text


KINDS: dict[str, Callable[[int], bytes]] = {
    "sentences": _repeated("The quick brown fox jumps over a lazy dog. "),
    "spaces": _repeated(" "),
    "words of one letter": _repeated("a "),
    "one letter": _repeated("a"),
    "one word of random letters": _random(ord("a"), ord("z")),
    "one digit after another": _repeated("1234567890"),
    "combining marks": _repeated("\u0301\u0327"),
    "ideographs": _random(0x4E00, 0x9FFF),
    "Hangul": _random(0xAC00, 0xD7A3),
    "unassigned characters": _random(0x10600, 0x10700),
    "punctuation": _repeated("!?.,;:-()[]{}'\""),
    "beginnings of special tokens": _repeated("[<"),
    "special tokens": _repeated("[MASK]<mask></s>"),
    "invalid UTF-8": _repeated(b"\xff\xc3\xe2\x82"),
    "NUL": _repeated(b"\0"),
}


class Cost(NamedTuple):
    """The cost of a call.

    Fields:
        seconds: process time.
        megabytes: the peak of the resident memory above its size before the call.
    """

    seconds: float
    megabytes: float


class Prepared(NamedTuple):
    """A text that is ready to be measured.

    Fields:
        run: reads the text.
        rows: the number of rows of token ids that a task's model reads for it; 0 for a tokenizer.
    """

    run: Callable[[], Any]
    rows: int = 0


Reader = Callable[[bytes], Prepared]


class Costs(NamedTuple):
    """What texts of one kind took.

    Fields:
        by_size: by their length in bytes.
        rows: the model's rows for the longest.
    """

    by_size: dict[int, Cost]
    rows: int

    @property
    def longest(self) -> Cost:
        """The cost of the longest text."""
        return self.by_size[max(self.by_size)]


def measure(run: Callable[[], Any], repeats: int = _REPEATS) -> Cost:
    """Runs a function several times; returns the least time and the most memory."""
    costs = [_measure_once(run) for _ in range(repeats)]
    return Cost(min(cost.seconds for cost in costs), max(cost.megabytes for cost in costs))


def _measure_once(run: Callable[[], Any]) -> Cost:
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    before = _status("VmRSS")
    begin = time.process_time()
    run()
    seconds = time.process_time() - begin
    return Cost(seconds, max(0.0, _status("VmHWM") - before))


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(value) * 1024 / 1e6


def exponent(costs: dict[int, Cost]) -> float:
    """The exponent of the time between the two longest texts."""
    (small, before), (large, after) = sorted(costs.items())[-2:]
    return math.log(after.seconds / before.seconds) / math.log(large / small)


def by_kind(reader: Reader, sizes: Iterable[int], kinds: Iterable[str]) -> dict[str, Costs]:
    """The cost of a text of each kind and size, in bytes.

    Args:
        reader: prepares a text.
        sizes: lengths in bytes.
        kinds: names in ``KINDS``.
    """
    sizes, costs = tuple(sizes), {}
    for kind in kinds:
        reader(KINDS[kind](sizes[0])).run()  # loads what this kind of text needs
        prepared = {size: reader(KINDS[kind](size)) for size in sizes}
        by_size = {size: measure(text.run) for size, text in prepared.items()}
        costs[kind] = Costs(by_size, prepared[max(sizes)].rows)
    return costs


def tokenizer(name: str) -> Reader:
    """A published tokenizer, with offsets."""
    made = SUBJECTS[name].ours()
    graph = tf.function(
        made.tokenize_with_offsets, [tf.TensorSpec([None], tf.string)], autograph=False
    )
    return lambda text: Prepared(lambda: graph(tf.constant([text])))


def tasks() -> Iterator[tuple[str, Reader]]:
    """Tasks that read one text, without their models."""
    import bertfam_tf as bf

    def backbone(family: str, pieces: Any) -> Any:
        shape = dict(hidden_size=16, num_heads=2, num_layers=1)
        return bf.build(family, "tiny", vocab_size=pieces.vocab_size, **shape)

    tags = ["O", "B-X", "I-X"]
    length: dict[str, Any] = dict(max_length=512)
    english = {**length, "language_id": 0}
    pieces = {name: SUBJECTS[name].ours() for name in (TOKENIZERS[0], TOKENIZERS[1], TOKENIZERS[5])}
    words, bytes_, subwords = pieces.values()
    bert, roberta, xlm = map(backbone, ("bert", "roberta", "xlm"), pieces.values())
    made: dict[str, tuple[Any, dict[str, str]]] = {
        "`TextClassifier`, WordPiece": (bf.TextClassifier(bert, words, ["a", "b"], **length), {}),
        "`Reranker`, byte-level BPE": (bf.Reranker(roberta, bytes_, **length), {"query": "who"}),
        "`TokenTagger`, WordPiece": (bf.TokenTagger(bert, words, tags, **length), {}),
        "`TokenTagger`, byte-level BPE": (bf.TokenTagger(roberta, bytes_, tags, **length), {}),
        "`TokenTagger`, XLM's BPE": (bf.TokenTagger(xlm, subwords, tags, **english), {}),
        "`SpanQA`, WordPiece": (bf.SpanQA(bert, words, **length), {"question": "who"}),
        "`SpanQA`, XLM's BPE": (bf.SpanQA(xlm, subwords, **english), {"question": "who"}),
    }
    for name, (task, others) in made.items():
        yield name, _without_model(task, others)


def _without_model(task: Any, others: dict[str, str]) -> Reader:
    """A task whose model's outputs are zeros."""
    field = next(name for name in reversed(task.feature_names) if name not in others)
    inputs_of = tf.function(task.preprocess, autograph=False)

    def both(features: Any, outputs: Any) -> Any:
        encoded = task.encode(features)
        return task.components.preprocessor.inputs(encoded), task.postprocess(outputs, encoded)

    graph = tf.function(both, autograph=False, reduce_retracing=True)

    def prepare(text: bytes) -> Prepared:
        features = {field: tf.constant([text])}
        features |= {name: tf.constant([value]) for name, value in others.items()}
        inputs = inputs_of(features)
        rows = len(next(iter(inputs.values())))
        outputs = tf.nest.map_structure(
            lambda output: tf.zeros([rows, *output.shape[1:]], output.dtype),
            task({name: value[:1] for name, value in inputs.items()}, training=False),
        )
        return Prepared(lambda: graph(features, outputs), rows)

    return prepare


def _table(costs: dict[str, Costs], sizes: Iterable[int]) -> str:
    sizes, of_task = tuple(sizes), any(row.rows for row in costs.values())
    head = ["text", *(f"{_size(size)}: s" for size in sizes), "exponent", f"{_size(sizes[-1])}: MB"]
    head += [f"{_size(sizes[-1])}: rows of the model"] if of_task else []
    lines = []
    for kind, row in costs.items():
        seconds = [f"{row.by_size[size].seconds:.3f}" for size in sizes]
        line = [kind, *seconds, f"{exponent(row.by_size):.2f}", f"{row.longest.megabytes:.0f}"]
        lines.append([*line, f"{row.rows:,}"] if of_task else line)
    return markdown(head, lines)


def _size(size: int) -> str:
    return f"{size // 10**6} MB" if size >= 10**6 else f"{size // 10**3} kB"


def document(names: Iterable[str], sizes: tuple[int, ...], longest: int | None) -> str:
    """Measures tokenizers, then tasks; returns the page in Markdown."""
    readers = [*((name, tokenizer(name)) for name in names), *tasks()]
    parts, slowest, long = [], {}, {}
    for name, reader in readers:
        of_task = name.startswith("`")
        found_sizes = sizes[-2:] if of_task else sizes
        costs = by_kind(reader, found_sizes, TASK_KINDS if of_task else KINDS)
        kind = max(costs, key=lambda each: costs[each].longest.seconds)
        slowest[name] = (kind, costs[kind].longest)
        if longest is not None:
            found = measure(reader(KINDS[kind](longest)).run, 1)
            power = exponent({sizes[-1]: costs[kind].longest, longest: found})
            long[name] = (kind, found, power)
        parts.append(f"## {name}\n\n{_table(costs, found_sizes)}")
        print(f"\n{parts[-1]}", flush=True)
    limit = RequestLimits.max_text_bytes
    share = limit / sizes[-1]
    name = max(slowest, key=lambda each: slowest[each][1].seconds)
    kind, cost = slowest[name]
    worst = (
        f"For the {limit:,} bytes that `bertfam serve` takes in one request by default, the text "
        f"that takes the most time takes {cost.seconds * share:.1f} s ({name}, {kind})."
    )
    rows = [
        [name, kind, f"{cost.seconds:.1f}", f"{power:.2f}", f"{cost.megabytes:.0f}"]
        for name, (kind, cost, power) in long.items()
    ]
    if rows:
        table = markdown(["", "text", "10 MB: s", "exponent", "10 MB: MB"], rows)
        parts.insert(0, f"## The slowest kind of each\n\n{table}")
    return "\n\n".join([worst, *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*SUBJECTS, []], help="(all)")
    parser.add_argument("--longest", action="store_true", help="also measure 10 MB")
    parser.add_argument("--quick", action="store_true", help="short texts; writes nothing")
    arguments = parser.parse_args()
    if not texts.DATA.is_dir():
        sys.exit(f"No data at {texts.DATA}: make data, or set BERTFAM_DATA.")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sizes = SIZES[:2] if arguments.quick else SIZES
    longest = LONGEST if arguments.longest else None
    body = document(arguments.names or TOKENIZERS, sizes, longest)
    print(f"\n{body}")
    if not arguments.quick and not arguments.names:
        packages = machine.versions(("tensorflow", "tensorflow-text", "sentencepiece"))
        RESULT.write_text(
            "# Time and memory against the length of a text\n\n"
            f"`{' '.join(['python -m tools.bench.length', *sys.argv[1:]])}`, "
            f"{datetime.date.today()}, {machine.cpu()}, one thread: {packages}. Process time, and "
            f"the peak of the resident memory above its size before the call, the least and the "
            f"most of {_REPEATS} calls. Tasks are measured without their models, whose time is "
            "in proportion to the rows that they read, of at most 512 tokens. The exponent is the "
            f"exponent of the time between the two longest texts; 1 is linear.\n\n{body}\n",
            "utf-8",
        )


if __name__ == "__main__":
    main()
