"""Measures the tokenizers' speed, compared with other libraries, and their memory.

    python -m tools.bench.tokenizers                 # writes tools/results/tokenizer_speed.md
    python -m tools.bench.tokenizers memory          # writes tools/results/tokenizer_memory.md
    python -m tools.bench.tokenizers --quick gpt2    # one round of one tokenizer; writes nothing

English books in batches of 64, one thread, in two shapes: lines as they were typeset, and
paragraphs. All contenders go in turns, so that a busy machine is unfair to all alike, and the
median of the rounds' process times counts. Needs what `make live` installs. Contenders are timed
as their users call them: ours, KerasHub's and tensorflow-text's inside tf.data, where models are
fed from, and as a tf.function that is called with a batch (whose bare call is the baseline);
`tokenizers` and sentencepiece with a list of `str`.
"""

from __future__ import annotations

import os

# Read when the libraries start.
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1",
               "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}  # fmt: skip

import argparse
import collections
import datetime
import functools
import importlib.metadata
import itertools
import platform
import random
import statistics
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from tests.support import texts
from tests.support.compare_tokenizers import markdown
from tests.support.subjects import SUBJECTS, VOCABULARIES, Subject
from tools.make_tokenizer_references import FAST, fast_tokenizer

RESULTS = texts.ROOT / "tools" / "results"
BATCH = 64
OURS = "ours"
CALLED, STREAMED = ", called", ", in tf.data"
BYTE_LEVEL = ("gpt2", "roberta-base")
SENTENCEPIECE = {"albert-base-v2": "30k-clean.model", "xlnet-base-cased": "spiece.model"}
BPE = (*BYTE_LEVEL, "openai-gpt", "xlm-mlm-xnli15-1024")
_MOST_ROUNDS = 100
ROWS = [tf.TensorSpec([None], tf.string)]


class Shape:
    """Text in batches of 64, in the form that each contender needs."""

    def __init__(self, name: str, batches: list[list[bytes]]) -> None:
        size = sum(len(line) for batch in batches for line in batch)
        self.name = name
        self.batches = batches
        self.strings = [list(map(texts.decoded, batch)) for batch in batches]
        self.tensors = [tf.constant(batch) for batch in batches]
        self.megabytes = size / 1e6
        self.line = size / (len(batches) * BATCH)


def shape(name: str, lines: list[bytes], megabytes: float) -> Shape:
    """Returns about `megabytes` of the lines, from all over."""
    step = max(1, int(sum(map(len, lines)) / 1e6 / megabytes))
    batches = [lines[at : at + BATCH] for at in range(0, len(lines) - BATCH + 1, BATCH)]
    return Shape(name, batches[::step])


Contender = Callable[[Shape], object]


# The contenders.


def contenders(
    subject: Subject, shapes: list[Shape], scratch: Path
) -> Iterator[tuple[str, Contender]]:
    """Yields everything that reads one published vocabulary, ours first."""
    ours = subject.ours()
    yield from _both(OURS, lambda: ours.tokenize, shapes)
    yield "ours with offsets, called", _called(ours.tokenize_with_offsets)
    fast = None
    if subject.live:
        fast = subject.reference()
    elif subject.name in FAST:
        fast = fast_tokenizer(subject.name, scratch).backend_tokenizer
    if fast:
        yield "tokenizers", _each_batch(fast.encode_batch, add_special_tokens=False)
        yield (
            "tokenizers, no offsets",
            _each_batch(fast.encode_batch_fast, add_special_tokens=False),
        )
    yield from _peers(subject.name, shapes)


def _each_batch(encode: Callable[..., Any], **options: Any) -> Contender:
    return lambda shape: [encode(batch, **options) for batch in shape.strings]


def _both(
    what: str, make: Callable[[], Callable[..., Any]], shapes: list[Shape]
) -> Iterator[tuple[str, Contender]]:
    # One each, because some fill a cache.
    yield what + STREAMED, _in_dataset(make(), shapes)
    yield what + CALLED, _called(make())


def _called(function: Callable[..., Any]) -> Contender:
    graph = tf.function(function, input_signature=ROWS, autograph=False)
    return lambda shape: [graph(batch) for batch in shape.tensors]


def _flat(ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    return ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids


def _in_dataset(function: Callable[..., Any], shapes: list[Shape]) -> Contender:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False

    def rounds(shape: Shape) -> Iterator[tf.Tensor]:
        # One step of the iterator is a round: starting an iterator takes longer than a sentence.
        batches = tf.data.Dataset.from_tensor_slices(tf.constant(shape.batches))
        counts = batches.map(lambda batch: tf.size(_flat(function(batch))))
        # The first step is the warm-up, which is to see one batch alone.
        size = len(shape.batches)
        steps = counts.repeat().batch(1).rebatch([1] + [size] * _MOST_ROUNDS)
        return iter(steps.with_options(options))

    iterators = {shape.name: rounds(shape) for shape in shapes}
    return lambda shape: next(iterators[shape.name])


def _peers(name: str, shapes: list[Shape]) -> Iterator[tuple[str, Contender]]:
    if name.startswith("bert"):
        file = VOCABULARIES / name / "vocab.txt"
        yield from _peers_of_bert(file, "uncased" in name, shapes)
    elif name in BYTE_LEVEL:
        import keras_hub

        kind = {"gpt2": "GPT2Tokenizer", "roberta-base": "RobertaTokenizer"}[name]
        files = [str(VOCABULARIES / name / file) for file in ("vocab.json", "merges.txt")]
        made = functools.partial(getattr(keras_hub.models, kind), *files)
        yield from _both("KerasHub", made, shapes)
    elif name in SENTENCEPIECE:
        file = VOCABULARIES / name / SENTENCEPIECE[name]
        yield from _peers_of_sentencepiece(file, name.startswith("albert"), shapes)


def _peers_of_bert(
    vocabulary: Path, lower_case: bool, shapes: list[Shape]
) -> Iterator[tuple[str, Contender]]:
    import keras_hub
    import tensorflow_text as tf_text

    pieces = vocabulary.read_text("utf-8").split("\n")[:-1]
    made = functools.partial(keras_hub.models.BertTokenizer, str(vocabulary), lowercase=lower_case)
    yield from _both("KerasHub", made, shapes)
    kernel = tf_text.FastBertTokenizer(
        pieces, lower_case_nfd_strip_accents=lower_case, token_out_type=tf.int32
    )
    yield from _both("tf_text.FastBertTokenizer", lambda: kernel.tokenize, shapes)


def _peers_of_sentencepiece(
    model: Path, lower_case: bool, shapes: list[Shape]
) -> Iterator[tuple[str, Contender]]:
    import sentencepiece
    import tensorflow_text as tf_text

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    yield "sentencepiece, bare", _each_batch(processor.encode, num_threads=1)
    encode = python_sentencepiece(processor, lower_case)
    yield (
        "sentencepiece, equal ids",
        lambda shape: [[encode(line) for line in batch] for batch in shape.strings],
    )
    kernel = tf_text.SentencepieceTokenizer(model.read_bytes())
    yield from _both("tf_text.SentencepieceTokenizer, bare", lambda: kernel.tokenize, shapes)


def python_sentencepiece(processor: Any, lower_case: bool) -> Callable[[str], list[int]]:
    """Returns sentencepiece with ALBERT's or XLNet's steps before and after: text to ids.

    White space is made single, two kinds of quotes become one, accents are stripped; and of a
    piece that ends in a digit and a comma the comma becomes a piece of its own.
    """

    def prepared(text: str) -> str:
        text = " ".join(text.split()).replace("``", '"').replace("''", '"')
        text = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in text if not unicodedata.combining(char))
        return text.lower() if lower_case else text

    def without_comma(piece: str) -> list[str]:
        body = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
        if not piece.startswith("▁") and body[0].startswith("▁"):
            body[0] = body[0][1:]
        return [part for part in body if part] + [","]

    def encode(text: str) -> list[int]:
        pieces = []
        for piece in processor.encode(prepared(text), out_type=str):
            split = len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()
            pieces += without_comma(piece) if split else [piece]
        return processor.piece_to_id(pieces)

    return encode


# Speed.


def speed(subjects: list[Subject], rounds: int, megabytes: float) -> str:
    """Times all contenders; returns the table in Markdown."""
    shapes = [
        shape("lines", texts.book_lines(), megabytes),
        shape("paragraphs", texts.book_paragraphs(), megabytes),
    ]
    about = "; ".join(
        f"{part.name} of {part.line:.0f} bytes on average, {part.megabytes:.1f} MB"
        for part in shapes
    )
    tables = [
        f"Text: {about}. The median of {rounds} rounds, and the first one, when caches are empty. "
        f"{_call_baseline(shapes[0])}"
    ]
    for subject in subjects:
        with tempfile.TemporaryDirectory() as scratch:
            runs = dict(contenders(subject, shapes, Path(scratch)))
            tables.append(_table(subject.name, _rates(subject.name, runs, shapes, rounds), shapes))
        print("\n" + tables[-1], flush=True)
    return "\n\n".join(tables)


def _call_baseline(shape: Shape) -> str:
    run = _called(tf.identity)
    run(shape)
    begin = time.process_time()
    run(shape)
    microseconds = (time.process_time() - begin) / len(shape.tensors) * 1e6
    return f"The call of a tf.function that does nothing takes {microseconds:.0f} µs of each batch."


def _rates(
    name: str, runs: dict[str, Contender], shapes: list[Shape], rounds: int
) -> dict[str, list[float]]:
    """Returns each contender's MB/s: in the first round of the first shape, then in each shape."""
    times: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    jobs = list(itertools.product(shapes, runs.items()))
    for shape, (_, run) in jobs:
        run(Shape(shape.name, shape.batches[:1]))
    for _ in tqdm(range(rounds), desc=name):
        for shape, (what, run) in jobs:
            begin = time.process_time()
            run(shape)
            times[shape.name, what].append(time.process_time() - begin)
    return {
        what: [
            shapes[0].megabytes / times[shapes[0].name, what][0],
            *(shape.megabytes / statistics.median(times[shape.name, what]) for shape in shapes),
        ]
        for what in runs
    }


def _table(name: str, rates: dict[str, list[float]], shapes: list[Shape]) -> str:
    names = [f"{shapes[0].name}, first round", *(shape.name for shape in shapes)]
    titles = ("MB/s", "ours in tf.data is", "ours called is")
    head = [name, *(f"{column}: {title}" for column in names for title in titles)]
    lines = []
    for what, columns in rates.items():
        cells = [what]
        for rate, *ours in zip(columns, rates[OURS + STREAMED], rates[OURS + CALLED], strict=True):
            cells += [f"{rate:.2f}", *(f"{each / rate:.2f} ×" for each in ours)]
        lines.append(cells)
    return markdown(head, lines)


# Memory.


def memory(subjects: list[Subject], words: int) -> str:
    """Tokenizes distinct words; returns the memory in use at each quarter, in Markdown."""
    lines = ["| tokenizer | at the start | 1/4 | 2/4 | 3/4 | all |", "| --- |" + " ---: |" * 5]
    for subject in subjects:
        tokenize = tf.function(subject.ours().tokenize, input_signature=ROWS, autograph=False)
        made = _distinct_words(words)
        marks: list[str] = []
        tokenize(tf.constant(next(made)))
        count = words // (BATCH * 8)
        for index, batch in enumerate(tqdm(made, total=count, desc=subject.name)):
            if index * 4 // count == len(marks):
                marks.append(f"{_resident_megabytes():.0f} MB")
            tokenize(tf.constant(batch))
        marks.append(f"{_resident_megabytes():.0f} MB")
        lines.append(f"| {subject.name} | {' | '.join(marks)} |")
        print(lines[-1], flush=True)
    return f"{words:,} distinct words, batches of {BATCH} lines of 8.\n\n" + "\n".join(lines)


def _distinct_words(count: int) -> Iterator[list[str]]:
    """Yields batches of lines of words; no word occurs twice."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def word(index: int) -> str:
        # The number, in letters, between random ones, makes it distinct.
        number = "".join(letters[index // 26**place % 26] for place in range(5))
        return "".join(rng.choices(letters, k=rng.randint(1, 5))).capitalize() + number

    for first in range(0, count, BATCH * 8):
        made = [word(index) for index in range(first, first + BATCH * 8)]
        yield [" ".join(made[at : at + 8]) for at in range(0, len(made), 8)]


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _document(title: str, what: str, body: str) -> str:
    packages = ("tensorflow", "tensorflow-text", "tokenizers", "keras-hub", "sentencepiece")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    command = " ".join(["python -m tools.bench.tokenizers", *sys.argv[1:]])
    return (
        f"# {title}\n\n`{command}`, {datetime.date.today()}, {platform.machine()}, one thread: "
        f"{versions}. {what}\n\n{body}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=["memory", *SUBJECTS, []], help="(all)")
    parser.add_argument("--quick", action="store_true", help="little text; writes no table")
    arguments = parser.parse_intermixed_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    names = [name for name in arguments.names if name != "memory"]
    if not texts.DATA.is_dir():
        sys.exit(f"No data at {texts.DATA}: make data, or set BERTFAM_DATA.")
    if "memory" in arguments.names:
        chosen = [SUBJECTS[name] for name in names or BPE]
        body = memory(chosen, 100_000 if arguments.quick else 2_000_000)
        file, title = "tokenizer_memory.md", "Memory on words that never come again"
        what = "Resident memory of the process, which must not grow over the second half."
    else:
        chosen = [SUBJECTS[name] for name in names or SUBJECTS]
        body = speed(chosen, *((1, 0.1) if arguments.quick else (5, 2.0)))
        file, title = "tokenizer_speed.md", "Tokenizers: speed beside others"
        what = "“Ours is 2 ×” means twice as fast as that line's contender."
    if not arguments.quick and not names:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / file).write_text(_document(title, what, body), "utf-8")


if __name__ == "__main__":
    main()
