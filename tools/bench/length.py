"""Measures the time and memory that one text takes, against its length.

    python -m tools.bench.length                    # writes tools/results/length.md
    python -m tools.bench.length --longest          # also 10 MB of each tokenizer's slowest kind
    python -m tools.bench.length --quick roberta-base   # short texts; writes nothing

Published vocabularies, one thread, process time. Each kind of text is tokenized with offsets.
Tasks get tiny backbones, so that their times are mostly the time for the text. An exponent of 1 is
linear time.
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
TASK_KINDS = ("sentences", "spaces")
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
    """What a call took.

    Fields:
        seconds: process time.
        megabytes: the peak of the resident memory above its size before the call.
    """

    seconds: float
    megabytes: float


def measure(run: Callable[[], Any]) -> Cost:
    """Runs a function once."""
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


def by_kind(
    run: Callable[[bytes], Any], sizes: Iterable[int], kinds: Iterable[str]
) -> dict[str, dict[int, Cost]]:
    """What a text of each kind and size, in bytes, costs.

    Args:
        run: reads a text.
        sizes: lengths in bytes.
        kinds: names in ``KINDS``.
    """
    sizes, costs = tuple(sizes), {}
    for kind in kinds:
        run(KINDS[kind](sizes[0]))  # loads what this kind of text needs
        made = {size: KINDS[kind](size) for size in sizes}
        costs[kind] = {size: measure(lambda x=text: run(x)) for size, text in made.items()}
    return costs


def tokenizer(name: str) -> Callable[[bytes], Any]:
    """A published tokenizer, with offsets."""
    made = SUBJECTS[name].ours()
    graph = tf.function(
        made.tokenize_with_offsets, [tf.TensorSpec([None], tf.string)], autograph=False
    )
    return lambda text: graph(tf.constant([text]))


def tasks() -> Iterator[tuple[str, Callable[[bytes], Any]]]:
    """Tasks of tiny models that read one text."""
    import bertfam_tf as bf

    words, bytes_ = SUBJECTS["bert-base-uncased"].ours(), SUBJECTS["roberta-base"].ours()

    def backbone(family: str, pieces: Any) -> Any:
        shape = dict(hidden_size=16, num_heads=2, intermediate_size=16, num_layers=1)
        return bf.build(family, "tiny", vocab_size=pieces.vocab_size, **shape)

    bert, roberta = backbone("bert", words), backbone("roberta", bytes_)
    made = {
        "`TextClassifier`, WordPiece": (bf.TextClassifier(bert, words, ["a", "b"]), {}),
        "`TokenTagger`, WordPiece": (bf.TokenTagger(bert, words, ["O", "B-X", "I-X"]), {}),
        "`Reranker`, byte-level BPE": (bf.Reranker(roberta, bytes_), {"query": "who"}),
        "`SpanQA`, WordPiece": (bf.SpanQA(bert, words), {"question": "who"}),
    }
    for name, (task, others) in made.items():
        field = next(each for each in reversed(task.feature_names) if each not in others)
        graph = tf.function(task.answer, autograph=False)

        def run(text: bytes, graph: Any = graph, field: str = field, others: Any = others) -> Any:
            return graph(
                {field: tf.constant([text])} | {k: tf.constant([v]) for k, v in others.items()}
            )

        yield name, run


def _table(costs: dict[str, dict[int, Cost]], sizes: Iterable[int]) -> str:
    sizes = tuple(sizes)
    head = ["text", *(f"{_size(size)}: s" for size in sizes), "exponent", f"{_size(sizes[-1])}: MB"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for kind, row in costs.items():
        seconds = [f"{row[size].seconds:.3f}" for size in sizes]
        lines.append([kind, *seconds, f"{exponent(row):.2f}", f"{row[sizes[-1]].megabytes:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _size(size: int) -> str:
    return f"{size // 10**6} MB" if size >= 10**6 else f"{size // 10**3} kB"


def document(names: Iterable[str], sizes: tuple[int, ...], longest: int | None) -> str:
    """Measures tokenizers, then tasks; returns the page in Markdown."""
    parts, slowest, long = [], {}, {}
    for name in names:
        run = tokenizer(name)
        costs = by_kind(run, sizes, KINDS)
        kind = max(costs, key=lambda each: costs[each][sizes[-1]].seconds)
        slowest[name] = (kind, costs[kind][sizes[-1]].seconds)
        if longest is not None:
            text = KINDS[kind](longest)
            found = {sizes[-1]: costs[kind][sizes[-1]], longest: measure(lambda: run(text))}  # noqa: B023
            long[name] = (kind, found[longest], exponent(found))
        parts.append(f"## {name}\n\n{_table(costs, sizes)}")
        print(f"\n{parts[-1]}", flush=True)
    for name, run in tasks():
        costs = by_kind(run, sizes[-2:], TASK_KINDS)
        parts.append(f"## {name}\n\n{_table(costs, sizes[-2:])}")
        print(f"\n{parts[-1]}", flush=True)
    limit = RequestLimits.max_text_bytes
    name = max(slowest, key=lambda each: slowest[each][1])
    kind, seconds = slowest[name]
    worst = (
        f"The most expensive text is `{name}`'s {kind}: {seconds * limit / sizes[-1]:.1f} s for "
        f"the {limit:,} bytes that `bertfam serve` takes in one request by default."
    )
    rows = [
        f"| {name} | {kind} | {cost.seconds:.1f} | {power:.2f} | {cost.megabytes:.0f} |"
        for name, (kind, cost, power) in long.items()
    ]
    if rows:
        head = [
            "| tokenizer | text | 10 MB: s | exponent | 10 MB: MB |",
            "|---|---|---:|---:|---:|",
        ]
        parts.insert(0, "## The slowest kind of each tokenizer\n\n" + "\n".join([*head, *rows]))
    return "\n\n".join([worst, *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="tokenizers, or all")
    parser.add_argument("--longest", action="store_true", help="also measure 10 MB")
    parser.add_argument("--quick", action="store_true", help="short texts; writes nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SUBJECTS):
        parser.error(f"no tokenizer {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
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
            "the peak of the resident memory above its size before the call. The exponent is that "
            f"of the time between the two longest texts; 1 is linear.\n\n{body}\n",
            "utf-8",
        )


if __name__ == "__main__":
    main()
