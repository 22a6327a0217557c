"""Compares samples of real and hostile text with the `tokenizers` library.

`python -m tests.support.compare_tokenizers` compares all of it, with all references.
"""

import pytest

from tests.selection import in_full
from tests.support import texts
from tests.support.compare_tokenizers import count_differences
from tests.support.subjects import SUBJECTS

pytest.importorskip("tokenizers")

# The multilingual vocabulary is also cased.
LIVE = [name for name, subject in SUBJECTS.items() if subject.live and name != "bert-base-cased"]


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus(2_000)


@pytest.fixture(scope="module")
def hostile():
    made = texts.hostile_lines(800, seed=2) + texts.broken_lines(300, seed=3)
    return made + texts.long_lines(3_000)[::3] + texts.blank_lines()


@pytest.fixture(scope="module")
def characters():
    every = texts.every_character()
    return every[:0x3400] + every[::211]


@pytest.mark.full
@pytest.mark.parametrize("name", in_full(LIVE, ["bert-base-uncased", "gpt2"]))
def test_ids_and_offsets_equal_the_reference(name, corpus, hostile, characters):
    ours, reference = SUBJECTS[name].ours(), SUBJECTS[name].reference()
    assert len(corpus) > 1_500
    assert count_differences(ours, reference, corpus, 3) == (0, 0)
    ids, offsets = count_differences(ours, reference, hostile + characters, 3)
    assert ids == 0
    # Marks that accent stripping keeps but canonical ordering moves: see `WordPieceTokenizer`.
    assert offsets <= (5 if name == "bert-base-uncased" else 0)


def test_offsets_of_replaced_bytes():
    text, at = texts.decoded_with_offsets(b"a\xe2\x82\xff\xed\xa0\x80 \xe2\x82\xac")
    assert text == "a\ufffd\ufffd\ufffd\ufffd\ufffd €"
    assert at == [0, 1, 3, 4, 5, 6, 7, 8, 11]
