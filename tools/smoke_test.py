"""Checks an installed package, from raw text to a served answer: python smoke_test.py FOLDER

It trains, exports and loads a small new model in a folder, and needs nothing but the package.
"""

import sys
from pathlib import Path

import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "dull", "film"]
TEXTS, LABELS = ["a fine film", "a dull film"] * 4, ["good", "bad"] * 4


def main(folder: Path) -> None:
    tokenizer = WordPieceTokenizer(PIECES)
    backbone = bf.build("bert", "tiny", vocab_size=tokenizer.vocab_size)
    task = bf.TextClassifier(backbone, tokenizer, ["bad", "good"])
    task.fit(TEXTS, LABELS, batch_size=4, verbose=0)  # two steps
    task.save(folder / "task")
    version = task.export(folder / "export")
    served = tf.saved_model.load(str(version)).signatures["serving_default"]
    found = served(text=tf.constant(TEXTS))["label"].numpy()
    expected = [answer["label"] for answer in bf.load(folder / "task").predict(TEXTS)]
    assert [label.decode() for label in found] == expected, (found, expected)
    print(bf.__version__, Path(bf.__file__).parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
