"""A tokenizer of a few words."""

import pytest

from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "dull", "film", "one", "##s"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n")
    return WordPieceTokenizer(file)
