"""Trains vocabularies on a corpus.

The trainers are tensorflow-text's for WordPiece, ``tokenizers`` for byte-pair encoding and
``sentencepiece`` for SentencePiece; words are only counted.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.files import atomic, check_new
from bertfam_tf.parsing import byte_lines, is_compressed, not_utf8
from bertfam_tf.text.kernels import unicode
from bertfam_tf.text.special_tokens import ROLES
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.user_warnings import warn
from bertfam_tf.validation import one_of

_LOG = logging.getLogger(__name__)
_EXTRA = "vocabulary"
_NO_WORDS = "there are no words in the input"
# Longer words are left out by WordPiece's learner.
_LONGEST = 50
# SentencePiece's trainer reads lines of at most this many characters.
_LONGEST_LINE = 1 << 16
# The roles of special tokens that are not named after their role.
_ROLES_OF = {"s": ("bos", "cls"), "/s": ("eos", "sep"), "endoftext": ("bos", "eos", "unk")}
# For English, the size is about proportional to the threshold to the power of -0.6.
_SIZE_TO_THRESHOLD = 1.7


def train_vocabulary(
    kind: str,
    files: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    size: int | None = None,
    special: Sequence[str] | None = None,
    lower_case: bool | None = None,
    min_count: int | None = None,
) -> Tokenizer:
    """Trains a vocabulary on text files and saves a tokenizer with it.

    Files are streamed line by line, and only words and their counts are kept in memory, except by
    sentencepiece, which keeps the text. The result is deterministic.

    Args:
        kind: one of ``KINDS``.
        files: UTF-8 text.
        output: the directory to write, for ``load_tokenizer``; new or empty.
        size: the size of the vocabulary, special tokens included; a small corpus may give fewer
            entries. None, for ``"words"`` only, takes all words.
        special: the special tokens, which get the first ids; their roles follow from their names
            (``"[MASK]"``, ``"<mask>"``, ``"<s>"``, …), and all others are additional special
            tokens. None for the usual ones of the kind.
        lower_case: whether to lower-case; None lower-cases for ``"wordpiece"`` and ``"bpe"`` only,
            whose first published vocabularies are lower-cased.
        min_count: the minimum frequency of an entry; None for 2, or 1 with ``"words"``.

    Returns:
        The tokenizer.

    Raises:
        FileNotFoundError: if there is no such file.
        FileExistsError: ``output`` is not empty.
        ValueError: if an argument is invalid, a file is not UTF-8, the text is empty, all its words
            are too long for ``"wordpiece"``, ``size`` is too small, or the trainer's package is not
            installed.
    """
    one_of("kind", kind, KINDS)
    if size is None and kind != "words":
        raise ValueError(f"a vocabulary of kind {kind!r} needs a size.")
    paths = [Path(file) for file in files]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}.")
    directory = Path(output)
    check_new(directory)
    train, default_tokens = KINDS[kind]
    tokens = default_tokens if special is None else tuple(special)
    if not all(tokens) or len(set(tokens)) < len(tokens):
        raise ValueError(f"special tokens must be distinct and not empty, got {list(tokens)}.")
    if size is not None and size <= len(tokens):
        raise ValueError(f"size must be above the {len(tokens)} special tokens, got {size}.")
    options: dict[str, Any] = {} if lower_case is None else {"lower_case": lower_case}
    if min_count is not None:
        options["min_count"] = min_count
    tokenizer = train(paths, size, tokens, **options)
    with atomic(directory, replace=False) as path:
        tokenizer.save(path)
    return tokenizer


def _lines(files: Sequence[Path]) -> Iterator[str]:
    """Yields lines, and logs progress every tenth of the files or megabyte, whichever is more."""
    total = sum(file.stat().st_size for file in files)
    # The size of compressed text is not known before its end.
    of_total = "" if any(map(is_compressed, files)) else f" of {total / 1e6:.1f}"
    read, shown, empty = 0, 0, True
    step = max(total // 10, 1_000_000)
    for file in files:
        for number, data in enumerate(byte_lines(file), 1):
            if problem := not_utf8(f"{file}: line {number}", data):
                raise ValueError(problem)
            line = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
            yield line
            empty = empty and not line.strip()
            read += len(data)
            if read >= shown + step:
                shown = read
                _LOG.info("read %.1f%s MB", read / 1e6, of_total)
    if empty:
        raise ValueError(_NO_WORDS)


def _roles(special: Sequence[str], roles: Sequence[str] = ROLES) -> dict[str, Any]:
    """Returns the fields of ``SpecialTokens`` that follow from the tokens' names.

    Args:
        special: the special tokens; those whose names are not among ``roles`` are additional
            special tokens.
        roles: the roles that the kind of tokenizer has.
    """
    fields: dict[str, Any] = {}
    additional = []
    for token in special:
        name = token.strip("[]<>|").lower()
        known = [role for role in _ROLES_OF.get(name, (name,)) if role in roles]
        fields |= {f"{role}_token": token for role in known if f"{role}_token" not in fields}
        if not known:
            additional.append(token)
    return {**fields, "additional_special_tokens": tuple(additional)}


# Words.


def _words(
    files: Sequence[Path],
    size: int | None,
    special: Sequence[str],
    lower_case: bool = False,
    min_count: int = 1,
) -> Tokenizer:
    from bertfam_tf.text.tokenizers.words import WordTokenizer, count_words

    counts = count_words(_lines(files), lower_case=lower_case)
    return WordTokenizer.from_counts(
        counts,
        min_count=min_count,
        max_size=size,
        special=special,
        lower_case=lower_case,
        **_roles(special, ("unk", "eos", "pad")),
    )


# WordPiece.


def _word_piece(
    files: Sequence[Path],
    size: int,
    special: Sequence[str],
    lower_case: bool = True,
    min_count: int = 2,
) -> Tokenizer:
    from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

    rules = unicode.Rules(
        lower_case=lower_case, strip_accents=lower_case, split_chinese=True, clean_text=True
    )
    counts = _bert_words(files, rules)
    pieces = _learn_pieces(counts, size, special, min_count)
    roles = _roles(special, ("unk", "cls", "sep", "pad", "mask"))
    return WordPieceTokenizer.from_config({"vocabulary": pieces, "lower_case": lower_case, **roles})


def _bert_words(files: Sequence[Path], rules: unicode.Rules) -> Counter[str]:
    """Returns the frequencies of words, split as a tokenizer with these rules does."""
    isolated = rules.isolated()

    def spaced(text: str) -> str:
        return "".join(f" {char} " if isolated[ord(char)] else char for char in text)

    table = dict.fromkeys(np.flatnonzero(rules.removed()).tolist(), "")
    table |= {
        point: f" {chr(point)} " for point in np.flatnonzero(isolated & ~rules.removed()).tolist()
    }
    table |= {point: spaced(text) for point, text in rules.changed().items()}
    counts: Counter[str] = Counter()
    for line in _lines(files):
        counts.update(line.translate(table).split(" "))
    del counts[""]
    if not counts:
        raise ValueError(_NO_WORDS)
    return counts


def _learn_pieces(
    counts: Counter[str], size: int, special: Sequence[str], min_count: int
) -> list[str]:
    """Returns ``size`` pieces, or fewer if fewer occur ``min_count`` times.

    The learner takes a threshold on the count of a piece instead of a size; thresholds are tried
    until one gives slightly too many pieces, and the rarest of these are left out.
    """
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    isolated = unicode.Rules(True, True, True, True).isolated()
    marks = Counter({word: n for word, n in counts.items() if isolated[ord(word[0])]})
    words = [(word, n) for word, n in counts.items() if word not in marks]
    if words and all(len(word) > _LONGEST for word, _ in words):
        raise ValueError(
            f"all words in the input have more than {_LONGEST} characters, from which WordPiece "
            "learns nothing: write spaces between the words."
        )
    known = [(word, n) for word, n in words if len(word) <= _LONGEST]
    read, total = (sum(len(word) * n for word, n in each) for each in (known, words))
    if read < 0.99 * total:
        warn(
            f"{len(words) - len(known):,} of {len(words):,} different words have more than "
            f"{_LONGEST} characters and are left out, {1 - read / total:.0%} of the text: write "
            "spaces between the words."
        )
    words = known
    room = size - len(special)
    # Punctuation and letters may take half of the vocabulary; a letter takes two entries. Further
    # marks, as Chinese has them, are pieces if they are as frequent as the others.
    by_count = marks.most_common()
    kept_marks = [mark for mark, _ in by_count[: room // 4]]
    letters = _frequent_letters(words, (room // 2 - len(kept_marks)) // 2, size)
    words = learner.filter_input_words(words, letters, -1)
    parameters = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=4,
        max_input_tokens=-1,
        max_token_length=_LONGEST,
        max_unique_chars=len(letters),
        vocab_size=size,
        slack_ratio=0.0,
        include_joiner_token=True,
        joiner="##",
        reserved_tokens=[*special, *sorted(kept_marks)],
    )

    def learn(threshold: int) -> list[str]:
        more = [mark for mark, count in by_count[room // 4 :] if count >= threshold]
        reserved = [*parameters.reserved_tokens, *more]
        pieces = learner.learn_with_thresh(
            words, threshold, parameters._replace(reserved_tokens=reserved)
        )
        _LOG.info("%d pieces occur %d times or more", len(pieces), threshold)
        return pieces

    pieces = _search(learn, size, min_count, max(counts.values()))
    if len(pieces) < size:
        _LOG.info("the text has no more than %d pieces, %d were requested", len(pieces), size)
    # A word with a letter that is not a piece would be unknown.
    needed = {*parameters.reserved_tokens, *letters, *(f"##{letter}" for letter in letters)}
    left = size - len(needed)
    others = [piece for piece in pieces if piece not in needed][:left]
    needed.update(others)
    return [piece for piece in pieces if piece in needed]


def _search(learn: Callable[[int], list[str]], size: int, low: int, high: int) -> list[str]:
    """Searches a threshold from ``low`` to ``high`` at which ``learn`` returns ``size`` pieces or
    slightly more; returns its result, or the result at ``low`` if there is none."""
    best: list[str] = []
    few = False
    threshold = low + 8
    while True:
        threshold = min(max(threshold, low), high)
        pieces = learn(threshold)
        if size <= len(pieces) <= 1.1 * size:
            return pieces
        if len(pieces) > size:
            best, low = pieces, threshold + 1
        else:
            few, high = True, threshold - 1
        if low > high:
            return best or pieces
        guess = threshold * (len(pieces) / size) ** _SIZE_TO_THRESHOLD
        if best and few and not low <= guess <= high:
            guess = math.sqrt(low * high)
        threshold = round(min(max(guess, threshold / 10), threshold * 10))


def _frequent_letters(words: Iterable[tuple[str, int]], limit: int, size: int) -> set[str]:
    """Returns the most frequent characters of words, at most ``limit``.

    Raises:
        ValueError: they cover less than 99 % of the text.
    """
    seen: Counter[str] = Counter()
    for word, count in words:
        for letter in word:
            seen[letter] += count
    letters = sorted(seen, key=lambda letter: (-seen[letter], letter))[: max(limit, 0)]
    if sum(seen[letter] for letter in letters) < 0.99 * sum(seen.values()):
        raise ValueError(
            f"size {size} is too small: the text has {len(seen)} different letters, each of which "
            "takes two entries, and they may fill half of the vocabulary."
        )
    return set(letters)


# Byte-pair encoding.


def _byte_bpe(
    files: Sequence[Path],
    size: int,
    special: Sequence[str],
    lower_case: bool = False,
    min_count: int = 2,
) -> Tokenizer:
    from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer

    if lower_case:
        raise ValueError("byte-level BPE does not lower-case.")
    library = _extra("tokenizers")
    if size < 256 + len(special):
        raise ValueError(
            f"size {size} is too small: 256 bytes and {len(special)} special tokens need "
            f"{256 + len(special)} entries."
        )
    model = library.ByteLevelBPETokenizer()
    model.train_from_iterator(
        _lines(files),
        size,
        min_frequency=min_count,
        show_progress=False,  # it writes to standard output
        special_tokens=list(special),
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_model(folder)
        return ByteBPETokenizer.load(folder, **_roles(special))


def _bpe(
    files: Sequence[Path],
    size: int,
    special: Sequence[str],
    lower_case: bool = True,
    min_count: int = 2,
) -> Tokenizer:
    from bertfam_tf.text.tokenizers.bpe import BPETokenizer
    from bertfam_tf.text.tokenizers.bpe_files import END

    if not lower_case:
        raise ValueError("this BPE always lower-cases, as GPT's does.")
    library = _extra("tokenizers")
    counts = _bert_words(files, unicode.Rules(True, True, True, True, unicode.python_classes))
    letters = sorted(_frequent_letters(counts.items(), (size - len(special)) // 4, size))
    model = library.Tokenizer(library.models.BPE(end_of_word_suffix=END))
    model.pre_tokenizer = library.pre_tokenizers.Split(" ", "removed")
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        show_progress=False,  # it writes to standard output
        # Otherwise the trainer adds a letter only in the form (inside or at the end of a word) that
        # occurs in the text.
        special_tokens=[*special, *letters, *(letter + END for letter in letters)],
        end_of_word_suffix=END,
    )
    model.train_from_iterator(_repeated(counts, set(letters)), trainer)
    content = json.loads(model.to_str())["model"]
    pieces = sorted(content["vocab"], key=content["vocab"].get)
    merges = [(left, right) for left, right in content["merges"]]
    return BPETokenizer.from_config({"vocabulary": pieces, "merges": merges, **_roles(special)})


def _repeated(counts: Counter[str], letters: set[str]) -> Iterator[str]:
    """Yields text with the given frequencies of words, without words that have other letters."""
    for word, count in counts.items():
        if letters.issuperset(word):
            for start in range(0, count, 1000):
                yield " ".join([word] * min(count - start, 1000))


# SentencePiece.


def _sentence_piece(
    files: Sequence[Path],
    size: int,
    special: Sequence[str],
    lower_case: bool = False,
    min_count: int | None = None,
) -> Tokenizer:
    library = _extra("sentencepiece")
    from bertfam_tf.text.kernels.charsmap import preparation
    from bertfam_tf.text.tokenizers.sentencepiece import SentencePieceTokenizer

    if min_count is not None:
        raise ValueError("SentencePiece's trainer does not support min_count.")
    roles = _roles(special)
    unk, pad = roles.get("unk_token"), roles.get("pad_token")
    if unk is None:
        raise ValueError(
            f"special tokens must include one for unknown text, such as <unk>, got {list(special)}."
        )
    small = preparation(False, False, lower_case)
    failures: list[Exception] = []

    def lines() -> Iterator[str]:
        try:
            for line in _lines(files):
                yield from _cut(line.translate(small))
        except Exception as error:
            failures.append(error)
            raise

    model = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            vocab_size=size,
            # A small text may have fewer pieces.
            hard_vocab_limit=False,
            max_sentence_length=1 << 20,
            unk_id=special.index(unk),
            unk_piece=unk,
            pad_id=-1 if pad is None else special.index(pad),
            pad_piece=pad or "<pad>",
            bos_id=-1,
            eos_id=-1,
            # They get the remaining ids, in order.
            control_symbols=[token for token in special if token not in (unk, pad)],
            minloglevel=1,
        )
    except RuntimeError as error:
        if failures:
            raise failures[0] from error
        _, _, reason = str(error).rpartition("] ")
        raise ValueError(f"sentencepiece's trainer: {reason or error}") from error
    return SentencePieceTokenizer.from_config(
        {"model": model.getvalue(), "lower_case": lower_case, **roles}
    )


def _cut(line: str) -> Iterator[str]:
    """Divides a long line, which the trainer would leave out, before spaces."""
    start = 0
    while len(line) - start > _LONGEST_LINE:
        end = start + _LONGEST_LINE
        space = line.rfind(" ", start + 1, end)
        end = end if space < 0 else space
        yield line[start:end]
        start = end
    yield line[start:]


def _extra(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the trainer needs the package {module}: pip install 'bertfam-tf[{_EXTRA}]'."
        ) from error


KINDS: dict[str, tuple[Callable[..., Tokenizer], tuple[str, ...]]] = {
    "wordpiece": (_word_piece, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    "byte-bpe": (_byte_bpe, ("<s>", "<pad>", "</s>", "<unk>", "<mask>")),
    "sentencepiece": (_sentence_piece, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
    "bpe": (_bpe, ("<pad>", "<unk>")),
    "words": (_words, ("<eos>", "<unk>")),
}
