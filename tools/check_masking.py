"""Statistics of masking on real text: rates, replacements, lengths, speed.

    python -m tools.check_masking --report tools/results/masking.md
    python -m tools.check_masking --vocabularies --report tools/results/masking_vocabularies.md

Reads the books and CoNLL-2003 of the data folder (`python -m tools.fetch_data`). Every example of
the first epoch is also masked by `replay`, which draws the same numbers one after another in plain
Python: it has to select the same tokens, and knows which lengths were drawn.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import stats

from bertfam_tf.corpora import Masking, geometric, ngrams
from bertfam_tf.corpora.masking import word_edges
from bertfam_tf.text import WordPieceTokenizer, load_tokenizer, tokenize_words
from bertfam_tf.text.packing import Packer
from tools.books import paragraphs
from tools.subjects import VOCABULARIES
from tools.texts import DATA

MODES: dict[str, dict[str, Any]] = {
    "piece": {},
    "word": {"unit": "word"},
    "n-gram": {"unit": "word", "lengths": ngrams()},
    "span": {"unit": "word", "lengths": geometric(), "together": True},
    "entity": {"unit": "given"},
}
_BATCH = 256


# One example after another.


class Draw(NamedTuple):
    """A run of units that was proposed.

    Fields:
        length: how many units were drawn.
        words: the positions of each unit that was free.
        given: whether the first unit is a given span.
        left: how many tokens were still to be selected.
        accepted: whether it was selected.
    """

    length: int
    words: list[list[int]]
    given: bool
    left: int
    accepted: bool

    @property
    def size(self) -> int:
        return sum(map(len, self.words))


def numbers(seed: Sequence[int]) -> Any:
    """The random numbers of an example, as a function of purpose and index."""

    def mixed(x: int) -> int:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> shift)) * factor % 2**32
        return x ^ (x >> 16)

    state = mixed(mixed((int(seed[0]) + 0x9E3779B9) % 2**32) ^ int(seed[1]))

    def number(purpose: int, index: int = 0) -> np.float32:
        of_purpose = mixed((state + purpose * 0x85EBCA6B) % 2**32)
        return np.float32((mixed((of_purpose + index) % 2**32) >> 8) / 2**24)

    return number


def replay(
    units: Sequence[int],
    candidates: Sequence[bool],
    seed: Sequence[int],
    *,
    rate: float = 0.15,
    lengths: Sequence[float] = (1.0,),
    given: Sequence[bool] | None = None,
    words: float = 0.5,
) -> list[Draw]:
    """Masks one example as `Masking` does with units, in plain Python.

    Args:
        units: the number of the unit of each token; special tokens have units of their own.
        candidates: which tokens are real and not special.
        seed: of the example.
        rate, lengths, words: as `Masking` takes them.
        given: which tokens are in a given span.
    """
    number = numbers(seed)
    left = int(np.floor(np.float32(rate) * np.float32(sum(candidates)) + number(0)))
    cumulative = np.cumsum(np.asarray(lengths, "float64") / sum(lengths)).astype("float32")[:-1]
    tokens: dict[int, list[int]] = {}
    for position, (unit, candidate) in enumerate(zip(units, candidates, strict=True)):
        tokens.setdefault(unit, [])
        if candidate and (given is None or words > 0 or given[position]):
            tokens[unit].append(position)
    free = {unit for unit, positions in tokens.items() if positions}
    is_given = {unit: given is not None and given[tokens[unit][0]] for unit in free}
    draws: list[Draw] = []
    while left > 0 and free:
        step = len(draws)
        pool = sorted(free)
        if given is not None:
            want = number(8, step) >= words
            pool = [unit for unit in pool if is_given[unit] == want] or pool
        first = pool[min(int(number(2, step) * np.float32(len(pool))), len(pool) - 1)]
        length = 1 + int((number(3, step) >= cumulative).sum())
        run = []
        for unit in range(first, first + length):
            if not tokens.get(unit):
                break  # a special token, or padding
            run += [unit] if unit in free else []
        free -= set(run)
        draw = Draw(length, [tokens[unit] for unit in run], is_given[first], left, True)
        fits = np.float32(left) >= number(4, step) * np.float32(draw.size)
        draws.append(draw._replace(accepted=bool(fits)))
        left -= draw.size
    return draws


# Texts.


class Rows(NamedTuple):
    """Examples of one length with [CLS] and [SEP], all int32 (rows, length)."""

    token_ids: np.ndarray
    spans: np.ndarray


def books(tokenizer: Any, length: int) -> Rows:
    """All books, in rows without padding."""
    texts = [
        part for book in sorted((DATA / "gutenberg").glob("*.txt")) for part in paragraphs(book)
    ]
    pieces = tokenizer.tokenize(texts).flat_values.numpy()
    return _rows(tokenizer, pieces, np.zeros_like(pieces), length)


def news(tokenizer: Any, length: int) -> Rows:
    """CoNLL-2003 with its named entities as spans."""
    words, entity, number, before = [], [], 0, "O"
    for part in ("train", "testa", "testb"):
        for line in (DATA / f"conll2003/eng.{part}").read_text("utf-8").splitlines():
            if not line.strip() or line.startswith("-DOCSTART-"):
                before = "O"
                continue
            word, *_, tag = line.split()
            # A type begins with B- only next to another entity of that type.
            number += tag != "O" and (tag[2:] != before[2:] or tag.startswith("B-"))
            words.append(word)
            entity.append(number if tag != "O" else 0)
            before = tag
    pieces = tokenize_words(tokenizer, [words])[0]
    spans = np.repeat(entity, pieces.row_lengths().numpy())
    return _rows(tokenizer, pieces.flat_values.numpy(), spans, length)


def _rows(tokenizer: Any, pieces: np.ndarray, spans: np.ndarray, length: int) -> Rows:
    count = len(pieces) // (length - 2)

    def cut(values: np.ndarray, first: int, last: int) -> np.ndarray:
        inside = values[: count * (length - 2)].reshape(count, -1)
        return np.pad(inside, [[0, 0], [1, 1]], constant_values=[(0, 0), (first, last)])

    return Rows(
        cut(pieces, tokenizer.cls_id, tokenizer.sep_id).astype("int32"),
        cut(spans, 0, 0).astype("int32"),
    )


def words_of(tokenizer: Any, rows: Rows, with_spans: bool) -> np.ndarray:
    """The unit of each token, int (rows, length), computed from its text."""
    starts = np.array([not piece.startswith("##") for piece in tokenizer.vocabulary])
    begins = starts[rows.token_ids]
    begins[:, :2] = True
    if with_spans:
        before = np.roll(rows.spans, 1, axis=1)
        begins = np.where(rows.spans > 0, rows.spans != before, begins | (before > 0))
        begins[:, [0, 1, -1]] = True
    return np.cumsum(begins, axis=1)


# Measurements.


def mask(masking: Any, rows: Rows, epoch: int, calls: int = 1, batch: int = _BATCH) -> list[Any]:
    """All batches of an epoch, masked in a `tf.data` pipeline."""
    seeds = np.stack([np.full(len(rows.spans), epoch), np.arange(len(rows.spans))], 1)
    data = tf.data.Dataset.from_tensor_slices((rows.token_ids, seeds.astype("int32"), rows.spans))

    def masked(ids: Any, seeds: Any, spans: Any) -> Any:
        given = spans if masking.unit == "given" else None
        return masking(ids, tf.ones_like(ids), seeds, given)

    return list(data.batch(batch).map(masked, num_parallel_calls=calls))


def selected_of(batches: list[Any], length: int) -> np.ndarray:
    """Which tokens are predicted, bool (rows, length)."""
    parts = []
    for each in batches:
        found = np.zeros((each.positions.shape[0], length), bool)
        row, column = np.nonzero(each.weights.numpy())
        found[row, each.positions.numpy()[row, column]] = True
        parts.append(found)
    return np.concatenate(parts)


def after_of(batches: list[Any]) -> np.ndarray:
    """The tokens after masking, int (rows, length)."""
    return np.concatenate([each.token_ids.numpy() for each in batches])


def digest(batches: list[Any]) -> str:
    """A checksum of masked tokens and targets, the same for each size of batches."""
    targets = b"".join(
        row[weight > 0].tobytes()
        for each in batches
        for row, weight in zip(each.targets.numpy(), each.weights.numpy(), strict=True)
    )
    return hashlib.sha256(after_of(batches).tobytes() + targets).hexdigest()[:12]


def speed(masking: Any, rows: Rows) -> float:
    """Pieces per second of one core's time."""
    ids = tf.constant(rows.token_ids[:_BATCH])
    spans = tf.constant(rows.spans[:_BATCH]) if masking.unit == "given" else None
    seeds = tf.stack([tf.zeros(len(ids), tf.int32), tf.range(len(ids))], 1)
    run = tf.function(lambda seeds: masking(ids, tf.ones_like(ids), seeds, spans))
    run(seeds)
    begin, times = time.process_time(), 0
    while time.process_time() < begin + 1:
        run(seeds + times)
        times += 1
    return times * ids.shape[0] * ids.shape[1] / (time.process_time() - begin)


def measure(name: str, tokenizer: Any, rows: Rows, longer: Rows, epochs: int) -> dict[str, Any]:
    """The figures of one mode."""
    options = MODES[name]
    masking = Masking(tokenizer, **options)
    ids, length = rows.token_ids, rows.token_ids.shape[1]
    body = ~np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id])
    units = words_of(tokenizer, rows, with_spans=name == "entity")
    unit_ids = units + np.arange(len(ids))[:, None] * (length + 1)
    sizes = np.bincount(unit_ids.ravel())[unit_ids]
    total: dict[str, Any] = dict.fromkeys(
        "pieces selected masked random kept cut special runs".split(), 0
    )
    by_size = np.zeros((4, 2))
    epoch_selected = []
    for epoch in range(epochs):
        batches = mask(masking, rows, epoch)
        selected, after = selected_of(batches, length), after_of(batches)
        assert (after[~selected] == ids[~selected]).all(), "a token changed that is not predicted"
        epoch_selected += [selected] if epoch < 2 else []
        total["pieces"] += int(body.sum())
        total["selected"] += int(selected.sum())
        total["masked"] += int((after[selected] == tokenizer.mask_id).sum())
        total["kept"] += int((after[selected] == ids[selected]).sum())
        total["special"] += int((selected & ~body).sum())
        total["runs"] += int((selected[:, 1:] & ~selected[:, :-1]).sum())
        count = np.bincount(unit_ids[selected], minlength=unit_ids.max() + 1)[unit_ids]
        total["cut"] += int(((count > 0) & (count < sizes) & body & selected).sum())
        for size in range(1, 5):
            these = body & (sizes == size if size < 4 else sizes >= 4)
            by_size[size - 1] += (selected & these).sum(), these.sum()
        if not epoch:
            print(f"{name}: {digest(batches)}, {total['pieces']:,} pieces", flush=True)
            same = {
                digest(mask(masking, rows, 0, calls, size))
                for calls, size in ((1, _BATCH), (2, _BATCH), (7, 100))
            }
            total["digests"] = len(same | {digest(batches)})
    total["random"] = total["selected"] - total["masked"] - total["kept"]
    total["by size"] = by_size[:, 0] / by_size[:, 1]
    both = (epoch_selected[0] & epoch_selected[-1]).sum()
    total["again"] = both / epoch_selected[0].sum()
    total["speeds"] = [speed(masking, each) for each in (rows, longer)]
    if name != "piece":
        total["draws"], total["differ"] = [], 0
        keep = {k: v for k, v in options.items() if k == "lengths"}
        for row, (of_units, of_body, spans) in enumerate(zip(units, body, rows.spans, strict=True)):
            given = {"given": spans > 0} if name == "entity" else {}
            draws = replay(of_units.tolist(), of_body.tolist(), (0, row), **keep, **given)
            chosen = np.zeros(length, bool)
            for draw in draws:
                if draw.accepted:
                    chosen[[at for word in draw.words for at in word]] = True
            total["differ"] += bool((chosen != epoch_selected[0][row]).any())
            total["draws"].append(draws)
    return total


# The report.


# Vocabularies.

TEXTS = ("Chinese", "English")
SIZE = 1000


def texts_of(name: str) -> list[str]:
    """Premises of XNLI's Chinese dev split, or paragraphs of a book."""
    if name == "Chinese":
        rows = (DATA / "xnli" / "dev-zh.tsv").read_text("utf-8").split("\n")
        return [row.split("\t")[0] for row in rows if row][:SIZE]
    return list(paragraphs(sorted((DATA / "gutenberg").glob("*.txt"))[3]))[:SIZE]


def shares(masking: Masking, tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Tokens of a word, and shares of tokens and of texts; a text is an example."""
    packer = Packer(tokenizer.layout, tokenizer.special_ids, 128)
    inputs = packer([tokenizer.tokenize(texts)])
    ids, mask = inputs["token_ids"], inputs["padding_mask"]
    seeds = tf.stack([tf.zeros(len(texts), tf.int32), tf.range(len(texts))], 1)
    selected = masking(ids, mask, seeds).weights.numpy().sum(1)
    special = masking.is_special(ids).numpy()
    body = (mask.numpy() > 0) & ~special
    count = body.sum(1)
    words = body.sum()
    if masking.unit == "word":
        starts, ends = (edge[ids] for edge in word_edges(tokenizer))
        before = [np.pad(x, [[0, 0], [1, 0]])[:, :-1] for x in (ends, special)]
        words = (body & (starts | before[0] | before[1])).sum()
    some = count > 0
    rates = (
        selected.sum() / count.sum(),
        (selected[some] == 0).mean(),
        (selected > count / 2)[some].mean(),
    )
    return [f"{count.sum() / words:.2f}", *(f"{100 * rate:.1f}" for rate in rates)]


def vocabularies() -> str:
    """The report on words of several vocabularies, in Markdown."""
    rows = []
    for name in ("bert-base-multilingual-cased", "albert-base-v2", "xlnet-base-cased"):
        tokenizer = load_tokenizer(VOCABULARIES / name)
        for text in TEXTS:
            for mode in ("piece", "word", "n-gram", "span"):
                masking = Masking(tokenizer, **MODES[mode])
                rows.append([name, text, mode, *shares(masking, tokenizer, texts_of(text))])
    header = ["vocabulary", "text", "unit", "tokens of a word", "masked, %",
              "examples without a mask, %", "over half masked, %"]  # fmt: skip
    return "\n".join(
        [
            "# Masks in several vocabularies",
            "",
            "`python -m tools.check_masking --vocabularies`: "
            f"tensorflow {tf.__version__}. {SIZE:,} premises of XNLI's Chinese dev split and "
            "as many paragraphs of a book, each an example of up to 128 tokens; 15 % of its "
            "tokens are to be masked. Short examples have none more often, in any unit. ALBERT's "
            "and XLNet's vocabularies know few ideographs: a run of others is one unknown token.",
            "",
            *_table(header, rows),
            "",
        ]
    )


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def _shares(name: str, found: dict[str, Any]) -> list[str]:
    selected = found["selected"]
    return [
        name,
        f"{found['pieces']:,}",
        f"{100 * selected / found['pieces']:.3f}",
        *(f"{100 * found[key] / selected:.2f}" for key in ("masked", "random", "kept")),
        "" if name == "piece" else str(found["cut"]),
        str(found["special"]),
        f"{selected / found['runs']:.2f}",
        f"{100 * found['again']:.1f}",
        *(f"{value:,.0f}" for value in found["speeds"]),
    ]


def cut_spans(draws: list[Draw]) -> list[tuple[int, bool]]:
    """Words of each span, and whether one is cut, if the last draw is cut as in SpanBERT's code."""
    found = []
    for draw in draws:
        ends = np.cumsum([len(word) for word in draw.words])
        found.append((int((ends < draw.left).sum()) + 1, bool(draw.left not in ends)))
    return [
        (min(words, len(draw.words)), cut and draw.size > draw.left)
        for (words, cut), draw in zip(found, draws, strict=True)
    ]


def lengths(name: str, found: dict[str, Any]) -> list[str]:
    """Drawn and selected lengths beside the distribution that they are drawn from."""
    expected = np.array(MODES[name]["lengths"]) / sum(MODES[name]["lengths"])
    draws = [draw for row in found["draws"] for draw in row]
    n = np.arange(1, len(expected) + 1)
    drawn = np.bincount([draw.length for draw in draws], minlength=len(n) + 1)[1:]
    accepted = [len(draw.words) for draw in draws if draw.accepted]
    whole = np.bincount(accepted, minlength=len(n) + 1)[1:]
    test = stats.chisquare(drawn, expected * drawn.sum())
    rows = [
        [str(i), *(f"{100 * x:.2f}" for x in each)]
        for i, *each in zip(n, expected, drawn / drawn.sum(), whole / whole.sum(), strict=True)
    ]
    means = [(n * x).sum() / x.sum() for x in (expected, drawn, whole)]
    rows.append(["mean", *(f"{mean:.3f}" for mean in means)])
    shortened = np.mean([len(draw.words) < draw.length for draw in draws])
    last = [row[-1] for row in found["draws"] if row]
    cut = cut_spans(draws)
    return [
        f"## Lengths of {name}s",
        "",
        f"{drawn.sum():,} draws: χ² = {test.statistic:.2f} with {len(n) - 1} degrees of freedom, "
        f"p = {test.pvalue:.3f}.",
        f"{100 * shortened:.1f} % meet the end of a text or what is selected already, and are "
        "shorter.",
        f"An example's last draw has {np.mean([d.length for d in last]):.2f} words on average, and "
        f"is rejected in {100 * np.mean([not d.accepted for d in last]):.1f} % of examples. Cut at "
        f"the number to select, as in SpanBERT's code, the mean would be "
        f"{np.mean([words for words, _ in cut]):.3f} words, and "
        f"{sum(is_cut for _, is_cut in cut):,} words would be cut.",
        "",
        *_table(["words", "expected, %", "drawn, %", "selected, %"], rows),
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--epochs", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--report", type=Path, help="the file to write, in Markdown")
    parser.add_argument("--vocabularies", action="store_true", help="Chinese and English words")
    options = parser.parse_args()
    if options.vocabularies:
        text = vocabularies()
        print(text)
        if options.report:
            options.report.write_text(text, "utf-8")
        return
    tokenizer = WordPieceTokenizer.load(VOCABULARIES / "bert-base-uncased")
    found = {}
    for name in options.modes:
        text = news if name == "entity" else books
        rows = [text(tokenizer, length) for length in (128, 512)]
        found[name] = measure(name, tokenizer, *rows, options.epochs)
    print(report(found, options.epochs))
    if options.report:
        options.report.write_text(report(found, options.epochs), "utf-8")


def report(found: dict[str, Any], epochs: int) -> str:
    """All figures, in Markdown."""
    header = ["unit", "pieces", "rate, %", "[MASK], %", "random, %", "kept, %", "words cut",
              "special", "mean run", "again, %", "pieces/s, 128", "pieces/s, 512"]  # fmt: skip
    differ = {name: each["differ"] for name, each in found.items() if "differ" in each}
    examples = sum(len(each["draws"]) for each in found.values() if "draws" in each)
    lines = [
        "# Masking",
        "",
        f"`python -m tools.check_masking`, {time.strftime('%Y-%m-%d')}, {platform.machine()}: "
        f"tensorflow {tf.__version__}. bert-base-uncased, rows of 128 tokens, {epochs} epochs; the "
        "books, and CoNLL-2003 with its entities. Rates are of all tokens but [CLS] and [SEP]; "
        '"again" is the share of one epoch\'s masks that the next one has too; speeds are pieces '
        "per second of CPU time, at two lengths.",
        "",
        *_table(header, [_shares(*each) for each in found.items()]),
        "",
        "The same for 1, 2 and 7 parallel calls and batches of 256 and 100: "
        f"{'yes' if all(each['digests'] == 1 for each in found.values()) else 'NO'}. Examples in "
        f"which plain Python selects other tokens: {sum(differ.values())} of {examples:,}.",
        "",
        "Share of the tokens that are masked, in units of 1, 2, 3, and 4 or more tokens, %: "
        + "; ".join(
            f"{name} {', '.join(f'{100 * x:.1f}' for x in each['by size'])}"
            for name, each in found.items()
        )
        + ".",
        "",
    ]
    for name in ("n-gram", "span"):
        if name in found:
            lines += lengths(name, found[name])
    if "entity" in found:
        lines += entities(found["entity"])
    return "\n".join(lines).strip() + "\n"


def entities(found: dict[str, Any]) -> list[str]:
    """How many draws were of given spans."""
    draws = [draw for row in found["draws"] for draw in row]
    return [
        "## Entities and words",
        "",
        f"{100 * np.mean([draw.given for draw in draws]):.1f} % of {len(draws):,} draws are "
        "entities: half of them, but for examples with few entities.",
        "",
    ]


if __name__ == "__main__":
    main()
