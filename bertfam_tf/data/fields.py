"""Names of the texts and the label of an example."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bertfam_tf.hints import hint

TEXT = "text"
TEXT_PAIR = "text_pair"
LABEL = "label"
LANGUAGE = "language"


class Fields(NamedTuple):
    """Names of the features of an example.

    Fields:
        required: texts that every example has.
        optional: texts that an example may have.
        described: strings that describe an example, such as its language; only dicts, frames and
            data sets of dicts have them.
        aliases: usual names of columns in published tables, of a text or the label, where the
            column has not its own name; several columns are a label of several values.
        labelled: whether examples may have labels.
        words: whether a text may be a list of its words.
    """

    required: tuple[str, ...] = (TEXT,)
    optional: tuple[str, ...] = (TEXT_PAIR,)
    described: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    labelled: bool = True
    words: bool = False

    def __str__(self) -> str:
        required = " and ".join(map(repr, self.required))
        return " and optionally ".join([required, *map(repr, self.omissible)])

    @property
    def omissible(self) -> tuple[str, ...]:
        """All names that an example may lack."""
        return (*self.optional, *self.described)

    def check(self, features: Iterable[str]) -> None:
        """Raises ValueError for other names than these."""
        names = set(features)
        if not set(self.required) <= names <= {*self.required, *self.omissible}:
            raise ValueError(f"Features must be {self}, got {sorted(names)}.{hint(sorted(names))}")


TEXTS = Fields()
