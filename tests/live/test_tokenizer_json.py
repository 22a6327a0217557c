"""tokenizer.json of published kinds, with real vocabularies; see ``compare_tokenizer_json``."""

import pytest

from tests.support import compare_tokenizer_json, texts
from tests.support.tokenizer_json_subjects import SUBJECTS

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def sections(real_data):
    for name in (*texts.CORPUS, "vocab"):
        real_data(name)
    return compare_tokenizer_json.sections(40, 40)


@pytest.mark.parametrize("name", SUBJECTS)
def test_ids_are_the_librarys(name, sections):
    """Alone, packed with special tokens, in tf.data and in a SavedModel."""
    counts, packed, served = compare_tokenizer_json.differences(name, sections, show=3)
    assert sum(count.ids for count in counts) == packed == served == 0
