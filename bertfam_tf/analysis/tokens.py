"""The text and the word that each token of a packed example comes from."""

from __future__ import annotations

import unicodedata
from itertools import filterfalse
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.tasks import Task
from bertfam_tf.tasks.preprocessing import WindowedPreprocessor

# Larger than all ids: codes that replace tokens while an example is packed.
_FIRST_CODE = 1 << 24
# The feature of words of a prompt, which precedes the first text.
PROMPT = "prompt"


class Word(NamedTuple):
    """A word of an example.

    Fields:
        text: the word.
        feature: the name of the text that it is from, such as ``text_pair``; ``prompt`` for a word
            of the task's default prompt.
        start, end: the word's byte range in that text.
        tokens: its positions in the packed example.
    """

    text: str
    feature: str
    start: int
    end: int
    tokens: tuple[int, ...]


class Example(NamedTuple):
    """A packed example.

    Fields:
        inputs: the inputs of the model, int32 (1, length), without padding.
        names: the names of the tokens; special ones as the tokenizer writes them.
        words: the words that were not truncated, in order.
    """

    inputs: dict[str, tf.Tensor]
    names: list[str]
    words: list[Word]

    @property
    def special(self) -> np.ndarray:
        """bool (length,): tokens that are of no word."""
        is_special = np.ones(len(self.names), bool)
        for word in self.words:
            is_special[list(word.tokens)] = False
        return is_special


def packed_example(task: Task, texts: dict[str, str]) -> Example:
    """Packs one example as the task does, and finds its words.

    The words of a tagger are the ones that it tags. In other tasks, a word is a run of letters and
    digits, with their accents and vowel signs; any other character, and each of Chinese and
    Japanese, is a word of its own.

    Args:
        task: a task whose examples are one row of tokens each.
        texts: the example's texts by name.

    Raises:
        ValueError: if the task's examples are several rows, as in multiple choice, a text is longer
            than the model's maximum, or the texts do not fit the task.
    """
    preprocessor: Any = task.components.preprocessor
    if isinstance(preprocessor, WindowedPreprocessor):
        pack, prompt = preprocessor.windows, ""
    elif preprocessor.rows_per_example == 1:
        pack, prompt = preprocessor.packer, preprocessor.prompt
    else:
        raise ValueError(f"Examples of {type(task).__name__} are several rows of tokens, not one.")
    task.fields.check(texts)
    names = [name for name in preprocessor.names if name in texts]
    encoded = preprocessor({name: tf.constant([texts[name]]) for name in names})
    inputs = preprocessor.inputs(encoded)
    rows = inputs["token_ids"].shape[0]
    if rows != 1:
        raise ValueError(f"The text must fit in one window of the model, got {rows} windows.")
    # With the option ``padding``, a row is longer than its text. Without any token it is padding.
    real = inputs["padding_mask"][0] > 0
    real = tf.where(tf.reduce_any(real), real, True)
    inputs = {name: tf.boolean_mask(tensor, real, axis=1) for name, tensor in inputs.items()}
    ids = inputs["token_ids"][0].numpy()
    shown = [preprocessor.tokenizer.id_to_token(int(i)) for i in ids]
    if "words" in encoded:
        return Example(inputs, shown, _tagged_words(encoded, names[0], real))
    prompted = {**texts, names[0]: prompt + texts[names[0]]}
    spans: list[tuple[str, int, int]] = []
    codes = []
    for name in names:
        _, starts, ends = preprocessor.tokenizer.tokenize_with_offsets([prompted[name]])
        first = _FIRST_CODE + len(spans)
        spans += [(name, *span) for span in zip(starts[0].numpy(), ends[0].numpy(), strict=True)]
        codes.append(tf.ragged.constant([range(first, _FIRST_CODE + len(spans))], tf.int32, 1))
    places = pack(codes)["token_ids"][0][real].numpy() - _FIRST_CODE
    words: list[Word] = []
    for position, code in enumerate(places):
        if code < 0:
            continue
        name, start, end = spans[code]
        content = prompted[name].encode()
        last = words[-1] if words else None
        if last and last.feature == name and _joined(content, last, int(start)):
            last = words.pop()
            start, tokens = last.start, (*last.tokens, position)
        else:
            tokens = (position,)
        text = content[start:end].decode("utf-8", "replace").strip()
        words.append(Word(text, name, int(start), int(end), tokens))
    size = len(prompt.encode())
    return Example(inputs, shown, [_without_prompt(w, size, names[0]) for w in words])


def _without_prompt(word: Word, size: int, first: str) -> Word:
    """Converts a word of a first text that begins with a prompt of ``size`` bytes."""
    if word.feature != first or not size:
        return word
    if word.end <= size:
        return word._replace(feature=PROMPT)
    return word._replace(start=max(word.start - size, 0), end=word.end - size)


def _tagged_words(encoded: dict[str, Any], feature: str, real: tf.Tensor) -> list[Word]:
    """Returns all words of a tagger's text; one of which no token is left has none."""
    words = encoded["words"]
    word, piece = (tf.boolean_mask(encoded[name][0], real).numpy() for name in ("word", "piece"))
    tokens: dict[int, list[int]] = {}
    current = -1
    for position in np.flatnonzero(piece >= 0):
        current = int(word[position]) if word[position] >= 0 else current
        tokens.setdefault(current, []).append(int(position))
    columns = (column.values.numpy() for column in (words.text, words.first_byte, words.end_byte))
    return [
        Word(
            text.decode("utf-8", "replace"), feature, int(start), int(end), tuple(tokens.get(i, ()))
        )
        for i, (text, start, end) in enumerate(zip(*columns, strict=True))
    ]


def _joined(content: bytes, last: Word, start: int) -> bool:
    """Returns whether a token that starts at a byte belongs to the last word."""
    between = content[last.end : start].decode("utf-8", "ignore")
    # Tokenizers leave out accents, and zero-width joiners, which Persian has within words.
    if not all(unicodedata.category(c) == "Cf" or _is_mark(c) for c in between):
        return False
    after = content[start:].decode("utf-8", "ignore")[:1]
    if _is_mark(after):
        return True
    before = content[: last.end].decode("utf-8", "ignore")
    return _in_words(next(filterfalse(_is_mark, reversed(before)), "")) and _in_words(after)


def _is_mark(character: str) -> bool:
    """Returns whether a character is an accent or a vowel sign of the one before it."""
    return bool(character) and unicodedata.category(character).startswith("M")


def _in_words(character: str) -> bool:
    wide = unicodedata.east_asian_width(character) == "W" if character else True
    hangul = "HANGUL" in unicodedata.name(character, "") if character else False
    return character.isalnum() and (hangul or not wide)


def texts_of_example(task: Task, x: Any) -> dict[str, str]:
    """Returns one example's texts by name, from a string, a tuple or a dict.

    Raises:
        ValueError: if the texts do not fit the task.
    """
    names = (*task.fields.required, *task.fields.optional)
    if isinstance(x, str):
        x = (x,)
    if isinstance(x, tuple | list):
        if len(x) > len(names):
            raise ValueError(
                f"An example of this task has at most {len(names)} texts, got {len(x)}; in a "
                "shell, a text of several words needs quotes."
            )
        x = dict(zip(names, x, strict=False))
    if not isinstance(x, dict) or not all(isinstance(text, str) for text in x.values()):
        raise ValueError(f"An example must be a string, or a tuple or dict of strings, got {x!r}.")
    task.fields.check(x)
    # Lone surrogates, as ``predict`` reads them.
    x = {name: text.encode("utf-8", "replace").decode() for name, text in x.items()}
    for name in task.fields.optional:
        if name in x and task.pair is False:
            raise ValueError(f"This task takes no {name!r}, got {x[name]!r:.200}.")
    return x
