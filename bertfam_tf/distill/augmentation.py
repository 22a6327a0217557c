"""Data augmentation for distillation on a task (TinyBERT, arXiv 1909.10351, algorithm 1).

A folder of augmented examples has TFRecord files, each with the copies of consecutive examples, and
``card.json``, which is written last. Records are ``tf.train.Example`` with the texts, as
``feature/NAME``, and the serialized ``label``.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import parsing
from bertfam_tf.corpora import shards
from bertfam_tf.corpora.shards import CARD, Unit
from bertfam_tf.data.tfrecords import read_tfrecords
from bertfam_tf.data.writing import os_errors
from bertfam_tf.distill.cache import model_digest
from bertfam_tf.files import atomic, exclusive_lock, write
from bertfam_tf.names import truncated
from bertfam_tf.sources import sha256
from bertfam_tf.tasks.masked_lm import MaskedLM
from bertfam_tf.text import Packer, Tokenizer

VERSION = 2
# As in the code of the paper.
MAX_WORD_VECTORS = 100_000
STOP_WORDS = frozenset(
    """
    a about above after again against all along also although am among an and any are around as at
    be because been before behind being below beside between both but by can cannot could d did do
    does doing don done down during each either else ever every except few for from further had has
    have having he her here hers herself him himself his how i if in inside into is it its itself
    just ll m may me might mine more most much must my myself near neither nor no not now of off on
    once one only onto or other our ours ourselves out outside over own per re s same shall she
    should since so some such t than that the their theirs them themselves then there these they
    this those though through till to too toward towards under unless until up upon us ve very was
    we were what whatever when where whether which while who whoever whom whose why will with within
    without would yet you your yours yourself yourselves
    ain aren couldn didn doesn hadn hasn haven isn mightn mustn needn shan shouldn wasn weren won
    wouldn
    """.split()
)

_WORD = re.compile(r"[^\W_]+")
_PLAIN = re.compile(rb"[a-z]+")
# Where the last candidate and the first of the others are closer than this, padding may change
# which is which, through rounding.
_CLOSE = 1e-4


class Place(NamedTuple):
    """A word of a text that is replaced.

    Fields:
        start, end: bytes of the text.
        candidates: what it is replaced by, UTF-8; at least one.
    """

    start: int
    end: int
    candidates: tuple[bytes, ...]


class _Word(NamedTuple):
    """A word of a text: its bytes, and its pieces, which are those from the index ``first``."""

    row: int
    start: int
    end: int
    first: int
    pieces: tuple[int, ...]


class Augmentation:
    """Replaces words of a text by others that fit in their place, or have a similar meaning.

    A word that is one piece of the tokenizer is replaced by one of the ``candidates`` most probable
    pieces of a masked language model when it alone is masked in the original text (so for all
    copies at once; algorithm 1 masks it in the copy); another word by one of its nearest neighbors
    by the cosine of word vectors. Words are replaced if they consist of the letters a to z, after
    the tokenizer's normalization, and are not stop words; candidates that are no such words,
    continuations of words or special tokens are left out. Words without candidates remain, as do
    words of one piece beyond the ``max_length`` of the masked language model.

    The paper has 20 copies; its code 30 for CoLA, MRPC, RTE and STS-B, and 10 for MNLI and QQP.

    Args:
        masked_lm: of any family; in float32, copies do not depend on the size of its batches.
        candidates: the number of pieces, or neighbors, that a replacement is drawn from.
        probability: with which each word of a copy is replaced.
        copies: of each text; those that are equal are dropped.
        word_vectors: a text file in the format of GloVe, a word and its numbers in each line, of
            which the first 100,000 are read. None for the token embedding of the masked language
            model: the mean of a word's pieces, and neighbors that are one piece.
        stop_words: words that are not replaced.
        pair_with_original: whether the masked language model reads the original text as the second
            of a pair with the masked one, as in the code of the paper (its algorithm has the masked
            text alone). Candidates are then closer to the word that is masked, which usually is the
            most probable one itself; masked alone, a word is replaced by what the context allows,
            its opposite included. Where both do not fit ``max_length``, the original is cut.
        seed: of the draws.

    Raises:
        ValueError: for a number out of range, or a file of word vectors that is not valid.
        TypeError: if ``masked_lm`` is another task.
    """

    def __init__(
        self,
        masked_lm: MaskedLM,
        *,
        candidates: int = 15,
        probability: float = 0.4,
        copies: int = 20,
        word_vectors: str | Path | None = None,
        stop_words: Collection[str] = STOP_WORDS,
        pair_with_original: bool = False,
        seed: int = 0,
    ):
        if not isinstance(masked_lm, MaskedLM):
            raise TypeError(f"masked_lm must be a MaskedLM, got a {type(masked_lm).__name__}.")
        most = masked_lm.tokenizer.vocab_size - 1
        for name, value, low, high in (
            ("candidates", candidates, 1, most),
            ("copies", copies, 1, 2**31 - 1),
            ("seed", seed, 0, 2**63 - 1),
        ):
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"{name} must be an integer from {low} to {high}, got {value!r}.")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must be from 0 to 1, got {probability!r}.")
        if isinstance(stop_words, str):
            raise ValueError(f"stop_words must be a set of words, got the text {stop_words!r}.")
        self.masked_lm = masked_lm
        self.candidates = candidates
        self.probability = probability
        self.copies = copies
        self.word_vectors = None if word_vectors is None else Path(word_vectors)
        self.stop_words = frozenset(stop_words)
        self.pair_with_original = pair_with_original
        self.seed = seed
        tokenizer = masked_lm.tokenizer
        self._vocabulary = _Vocabulary(tokenizer)
        self._packer = Packer(
            tokenizer.layout, tokenizer.special_ids, masked_lm.max_length, "only_second"
        )
        if self.word_vectors is None:
            self._embedding = np.array(masked_lm.backbone.parts["token_embedding"].embeddings)
            whole = np.flatnonzero(self._vocabulary.starts & self._vocabulary.words)
            words = [self._vocabulary.written[i] for i in whole]
            self._neighbors = _Neighbors(words, self._embedding[whole])
        else:
            self._neighbors = _read_vectors(self.word_vectors)
        self._similar = lru_cache(maxsize=1 << 14)(self._similar_words)
        signature = [tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
        self._likeliest = tf.function(self._likeliest_pieces, signature, autograph=False)

    def settings(self) -> dict[str, Any]:
        """All that determines the copies of a text, in values of JSON; files, words and the model
        by their sha256."""
        task = self.masked_lm
        vectors = self.word_vectors
        return {
            "version": VERSION,
            "candidates": self.candidates,
            "probability": self.probability,
            "copies": self.copies,
            "seed": self.seed,
            "pair_with_original": self.pair_with_original,
            "stop_words_sha256": _sha256(" ".join(sorted(self.stop_words)).encode()),
            "word_vectors_sha256": None if vectors is None else sha256(Path(vectors)),
            "max_length": task.max_length,
            "language_id": task.language_id,
            "tokenizer_sha256": shards.tokenizer_digest(task.tokenizer),
            "masked_lm_sha256": model_digest(task),
        }

    def places(self, texts: Sequence[str | bytes], *, batch_size: int = 64) -> list[list[Place]]:
        """The words of each text that may be replaced, in order, and their candidates.

        Args:
            texts: UTF-8 where they are bytes.
            batch_size: of the masked language model, in words.
        """
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        if not encoded:
            return []
        ids, starts, ends = self.masked_lm.tokenizer.tokenize_with_offsets(encoded)
        columns = [encoded, ids.to_list(), starts.to_list(), ends.to_list()]
        words = [
            word
            for row, of_text in enumerate(zip(*columns, strict=True))
            for word in _words(row, *of_text)
        ]
        found: list[list[Place]] = [[] for _ in encoded]
        if not words:
            return found
        pieces = tf.ragged.constant([word.pieces for word in words], tf.int32)
        written = [t.strip() for t in self.masked_lm.tokenizer.detokenize(pieces).numpy()]
        kept = [
            (word, text)
            for word, text in zip(words, written, strict=True)
            if _PLAIN.fullmatch(text) and text.decode() not in self.stop_words
        ]
        likely = self._likely_words(ids, [word for word, _ in kept], batch_size)
        for word, text in kept:
            if len(word.pieces) == 1:
                candidates = likely.get(word, ())
            else:
                candidates = self._similar(text, word.pieces)
            # A word that is replaced by itself remains as it was typed.
            typed = encoded[word.row][word.start : word.end]
            candidates = tuple(typed if each == text else each for each in candidates)
            if candidates:
                found[word.row].append(Place(word.start, word.end, candidates))
        return found

    def copies_of(
        self, text: bytes, places: Sequence[Place], example: int, index: int = 0
    ) -> list[bytes]:
        """Copies of a text with replaced words, at most ``copies``.

        Args:
            text: UTF-8.
            places: an entry of what the method ``places`` returns.
            example, index: the number of the example, and of the text in it; they and the seed
                determine the draws.

        Returns:
            Copies that differ from the text and from each other.
        """
        random = np.random.default_rng([self.seed, example, index])
        found: dict[bytes, None] = {}
        for replaced, chosen in random.random((self.copies, 2, len(places))):
            parts, at = [], 0
            for place, drawn, choice in zip(places, replaced, chosen, strict=True):
                if drawn < self.probability:
                    candidate = place.candidates[int(choice * len(place.candidates))]
                    parts += [text[at : place.start], candidate]
                    at = place.end
            found[b"".join([*parts, text[at:]])] = None
        found.pop(text, None)
        return list(found)

    def _likely_words(
        self, ids: tf.RaggedTensor, words: list[_Word], batch_size: int
    ) -> dict[_Word, tuple[bytes, ...]]:
        """The candidates of words of one piece that the masked language model reads."""
        special = self._packer.frame.layout.special_count(2 if self.pair_with_original else 1)
        room = self.masked_lm.max_length - special
        lengths = ids.row_lengths().numpy()
        words = [word for word in words if len(word.pieces) == 1 and word.first < room]
        words.sort(key=lambda word: lengths[word.row])

        def likeliest(words: list[_Word]) -> tuple[np.ndarray, np.ndarray]:
            rows = tf.gather(ids, [word.row for word in words])
            top, margin = self._likeliest(rows, tf.constant([word.first for word in words]))
            return top.numpy(), margin.numpy()

        found: dict[_Word, tuple[bytes, ...]] = {}
        for start in range(0, len(words), batch_size):
            batch = words[start : start + batch_size]
            top, margin = likeliest(batch)
            for i in np.flatnonzero(margin < _CLOSE):
                top[i] = likeliest([batch[i]])[0][0]
            for word, row in zip(batch, top, strict=True):
                found[word] = self._vocabulary.fitting(word.pieces[0], row)
        return found

    def _likeliest_pieces(
        self, pieces: tf.RaggedTensor, places: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids, int32 (batch, candidates), and the difference of the last one's logit to the next.

        Args:
            pieces: int32 (batch, (pieces)), of the texts.
            places: int32 (batch,), the index of the piece that is masked.
        """
        filled = self._packer.fill([pieces] * (2 if self.pair_with_original else 1))
        here = filled.pieces(0) == places[:, tf.newaxis]
        mask_id = self.masked_lm.tokenizer.mask_id
        token_ids = tf.where(here, mask_id, filled.inputs["token_ids"])
        logits, _ = self.masked_lm.forward({**filled.inputs, "token_ids": token_ids})
        # A text may have masks of its own.
        masked = (token_ids == mask_id) & (filled.inputs["padding_mask"] == 1)
        logits = tf.boolean_mask(logits, tf.boolean_mask(here, masked))
        # A model may have embeddings beyond the vocabulary, which stand for no text.
        logits = tf.cast(logits[:, : self.masked_lm.tokenizer.vocab_size], tf.float32)
        scores, ids = tf.math.top_k(logits, self.candidates + 1)
        return ids[:, :-1], scores[:, -2] - scores[:, -1]

    def _similar_words(self, word: bytes, pieces: tuple[int, ...]) -> tuple[bytes, ...]:
        """The candidates of a word of several pieces."""
        vector = self._neighbors.vector(word)
        if self.word_vectors is None:
            vector = self._embedding[list(pieces)].mean(axis=0)
        if vector is None:
            return ()
        nearest = self._neighbors.nearest(vector, word, self.candidates)
        return tuple(each for each in nearest if _PLAIN.fullmatch(each))


class _Vocabulary:
    """What the pieces of a tokenizer are in a text.

    Attributes:
        written: each piece as a text alone, UTF-8.
        words: whether it is letters a to z that end a word; bool (vocabulary,).
        starts: whether it starts a word inside of a text; bool (vocabulary,).
    """

    def __init__(self, tokenizer: Tokenizer):
        ids = np.arange(tokenizer.vocab_size, dtype="int32")

        def texts(*columns: Any) -> list[bytes]:
            pieces = np.stack(np.broadcast_arrays(*columns), axis=1)
            return [text.strip() for text in tokenizer.detokenize(tf.constant(pieces)).numpy()]

        self.written = texts(ids)
        additional = tokenizer.special_tokens.additional_special_tokens
        special = {*tokenizer.special_ids.values(), *map(tokenizer.token_to_id, additional)}
        plain = [
            i not in special and bool(_PLAIN.fullmatch(text)) for i, text in enumerate(self.written)
        ]
        twice = texts(ids, ids)
        whole = (
            i for i in ids if plain[i] and twice[i] == self.written[i] + b" " + self.written[i]
        )
        word = next(whole, None)
        if word is None:
            raise ValueError("The tokenizer has no pieces that are words of the letters a to z.")
        before = self.written[word] + b" "
        after = b" " + self.written[word]
        # Beside a whole word there is a space, unless the piece continues it, or is continued.
        self.starts = np.array([text.startswith(before) for text in texts(word, ids)])
        self.words = np.array([text.endswith(after) for text in texts(ids, word)]) & plain

    def fitting(self, piece: int, candidates: np.ndarray) -> tuple[bytes, ...]:
        """The candidates that are words in the place of a piece, in the order of their ids."""
        # Inside of a text without a space before, as after a bracket, pieces of some tokenizers do
        # not start a word.
        fits = self.words[candidates] & (self.starts[candidates] | ~self.starts[piece])
        texts = (self.written[i] for i in np.sort(candidates[fits]))
        return tuple(dict.fromkeys(texts))


class _Neighbors:
    """Words by the cosine of their vectors.

    Args:
        words: UTF-8, each once.
        vectors: float (words, width).
    """

    def __init__(self, words: list[bytes], vectors: np.ndarray):
        self.words = words
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = np.divide(vectors, norms, np.zeros_like(vectors), where=norms > 0)
        self._index = {word: i for i, word in enumerate(words)}

    def vector(self, word: bytes) -> np.ndarray | None:
        """The direction of a word; None for another one."""
        index = self._index.get(word)
        return None if index is None else self._directions[index]

    def nearest(self, vector: np.ndarray, word: bytes, count: int) -> list[bytes]:
        """The words nearest to a word's vector, without itself; none for a vector of zeros."""
        if not vector.any():
            return []
        similar = self._directions @ vector
        order = np.argsort(-similar, kind="stable")[: count + 1]
        return [self.words[i] for i in order if self.words[i] != word][:count]


def _read_vectors(path: Path) -> _Neighbors:
    """The first lines of a text file of word vectors."""
    words: dict[bytes, np.ndarray] = {}
    width = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(islice(file, MAX_WORD_VECTORS), 1):
                # Some words of GloVe's files have spaces.
                word, *numbers = line.rstrip().rsplit(b" ", width or -1)
                width = width or len(numbers)
                # The files of word2vec begin with a line of two numbers.
                if width < 2 or (vector := _vector(numbers, width)) is None:
                    raise ValueError(
                        f"{path}: line {number} is {truncated(line, 60)}, expected a word and its "
                        f"{width if number > 1 else ''} numbers, as in the files of GloVe."
                    )
                words.setdefault(word, vector)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not words:
        raise ValueError(f"{path} is empty, expected a word and its numbers in each line.")
    return _Neighbors(list(words), np.stack(list(words.values())))


def _vector(numbers: list[bytes], width: int) -> np.ndarray | None:
    """Numbers of a line; None if they are not finite numbers, or not as many."""
    try:
        vector = np.array(numbers, "float64")
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        vector = vector.astype("float32")
    return vector if len(vector) == width and np.isfinite(vector).all() else None


def _words(
    row: int, text: bytes, ids: list[int], starts: list[int], ends: list[int]
) -> Iterator[_Word]:
    """The words of a text, and their pieces."""
    # Broken bytes keep their number.
    decoded = text.decode("utf-8", "surrogateescape")

    def size(part: str) -> int:
        return len(part.encode("utf-8", "surrogateescape"))

    at = end = 0
    for match in _WORD.finditer(decoded):
        start = end + size(decoded[at : match.start()])
        at, end = match.end(), start + size(match[0])
        first = bisect_right(ends, start)
        pieces = tuple(ids[first : bisect_left(starts, end)])
        if pieces:
            yield _Word(row, start, end, first, pieces)


# Folders ---------------------------------------------------------------------------------------


def augment(
    rows: tf.data.Dataset,
    augmentation: Augmentation,
    directory: str | Path,
    *,
    shard_size: int = 1000,
    batch_size: int = 64,
    verbose: int = 1,
) -> tf.data.Dataset:
    """Augments examples, and writes them to a folder; reads them from there if they are complete.

    Each example is followed by its copies, which have its label: those of the first text, then, of
    a pair, those of the second one; the other text is the original one. Copies depend on the
    examples and the settings alone. A run that was killed continues after the last complete shard.

    Args:
        rows: examples ``(features, label)``, as ``read_split`` of ``train.run`` returns them:
            features are a dict of strings, labels scalars. They are read twice, and their order
            has to be the same.
        augmentation: what makes the copies.
        directory: a folder for these examples only.
        shard_size: the number of examples whose copies are one file.
        batch_size: words that the masked language model reads at a time.
        verbose: 1 for a progress bar, 0 for none.

    Returns:
        Examples with the structure of ``rows``, in the order of the files; read from the folder in
        each pass.

    Raises:
        ValueError: if the folder has examples of other settings, another model or other rows; for
            labels that are no scalars, as those of taggers, features that are no strings, no rows,
            or rows in another order when they are read again.
        OSError: if writing fails, or another process is writing the folder.
    """
    spec = _checked(rows)
    if shard_size < 1 or batch_size < 1:
        raise ValueError(f"Sizes must be at least 1, got {shard_size=} and {batch_size=}.")
    folder = Path(directory)
    with exclusive_lock(folder, folder / ".lock"):
        read = _Digest()
        for row in rows.as_numpy_iterator():
            read(row)
        if not read.count:
            raise ValueError("There are no rows to augment.")
        job = augmentation.settings() | {
            "rows_sha256": read.sha256,
            "label": spec[1].dtype.name,
            "shard_size": shard_size,
        }
        shards.begin(folder, job)
        units = [Unit(i, ()) for i in range(-(-read.count // shard_size))]
        todo = {unit.number for unit in shards.missing(folder, units)}
        if todo:
            again = _Digest()
            bar = keras.utils.Progbar(read.count, verbose=verbose, unit_name="example")
            examples = (again(row) for row in rows.as_numpy_iterator())
            for unit in units:
                first, chunk = again.count, list(islice(examples, shard_size))
                if unit.number in todo:
                    _write_shard(folder, unit, chunk, first, augmentation, batch_size)
                bar.update(again.count)
            if again.sha256 != read.sha256:
                raise ValueError(
                    f"The rows differ from one pass to the next; remove {folder}, and do not "
                    "shuffle them before they are augmented."
                )
        card = _finish(folder, job, units)
    return _dataset(folder, card, spec)


class _Digest:
    """The sha256 and the number of the rows that it was called with."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def __call__(self, row: Any) -> Any:
        features, label = row
        named = (part for name in sorted(features) for part in (name.encode(), features[name]))
        for part in (*named, _label(label)):
            self._hash.update(len(part).to_bytes(8, "little") + part)
        self.count += 1
        return row

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _checked(rows: Any) -> Any:
    """The structure of the rows, if they can be augmented."""
    if not isinstance(rows, tf.data.Dataset):
        raise ValueError(f"rows must be a tf.data.Dataset, got a {type(rows).__name__}.")
    if rows.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("rows must end, got a data set that is repeated without end.")
    spec = rows.element_spec
    if not (isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], dict)):
        raise ValueError(f"rows must have elements (features, label), got {truncated(spec)}.")
    for name, feature in spec[0].items():
        if not _is_scalar(feature) or feature.dtype != tf.string:
            raise ValueError(
                f"The feature {name!r} must be one string for each example, in rows that are not "
                f"batched; got {truncated(feature)}."
            )
    if not _is_scalar(spec[1]):
        raise ValueError(
            "Copies have the label of the original, which must be a scalar; got "
            f"{truncated(spec[1])}."
        )
    return spec


def _is_scalar(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0


def _label(label: Any) -> bytes:
    return tf.make_tensor_proto(label).SerializeToString(deterministic=True)


def _write_shard(
    folder: Path,
    unit: Unit,
    examples: list,
    first: int,
    augmentation: Augmentation,
    batch_size: int,
) -> None:
    """Writes the copies of examples, and then their numbers, which mark the shard as complete.

    Args:
        folder: of all shards.
        unit: names the file.
        examples: features and label of each.
        first: the number of the first one.
        augmentation: what makes the copies.
        batch_size: of the masked language model.
    """
    names = sorted(examples[0][0])
    texts = [features[name] for features, _ in examples for name in names]
    places = iter(augmentation.places(texts, batch_size=batch_size))
    written = 0
    with atomic(folder / unit.shard) as path:
        with os_errors(path), tf.io.TFRecordWriter(str(path)) as writer:
            for number, (features, label) in enumerate(examples, first):
                versions = [features]
                for index, name in enumerate(names):
                    copies = augmentation.copies_of(features[name], next(places), number, index)
                    versions += [{**features, name: copy} for copy in copies]
                serialized = _label(label)
                for version in versions:
                    writer.write(_record(version, serialized))
                written += len(versions)
        row = {"file": unit.shard, "bytes": path.stat().st_size, "sha256": sha256(path)}
    row |= {"examples": len(examples), "written": written}
    write(folder / unit.counts, _json(row))


def _record(features: dict[str, bytes], label: bytes) -> bytes:
    record = tf.train.Example()
    for name, text in features.items():
        record.features.feature[f"feature/{name}"].bytes_list.value.append(text)
    record.features.feature["label"].bytes_list.value.append(label)
    return record.SerializeToString(deterministic=True)


def _finish(folder: Path, job: dict[str, Any], units: list[Unit]) -> dict[str, Any]:
    """The card of a folder whose shards are complete; written if it is not there yet."""
    if (folder / CARD).is_file():
        card = parsing.read_json(folder / CARD)
    else:
        names = ("examples", "written")
        rows = [shards.read_counts(folder / unit.counts, names) for unit in units]
        counts = {name: sum(row[name] for row in rows) for name in names}
        card = {**job, "counts": counts, "shards": rows}
        write(folder / CARD, _json(card))
    shards.end(folder)
    shards.check_shards(folder / CARD, card, "written")
    return card


def _dataset(folder: Path, card: dict[str, Any], spec: Any) -> tf.data.Dataset:
    texts, label = spec
    keys = {name: f"feature/{name}" for name in texts}
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in (*keys.values(), "label")}

    @tf.autograph.experimental.do_not_convert
    def parsed(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        found = tf.io.parse_single_example(record, features)
        value = tf.ensure_shape(tf.io.parse_tensor(found["label"], label.dtype), [])
        return {name: found[key] for name, key in keys.items()}, value

    files = [str(folder / row["file"]) for row in card["shards"]]
    count = card["counts"]["written"]
    records = read_tfrecords(files, count, str(folder)).map(
        parsed, num_parallel_calls=tf.data.AUTOTUNE
    )
    return records.apply(tf.data.experimental.assert_cardinality(count))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
