"""The private parts of tensorflow-text that `kernels/internals.py` relies on.

A new version fails here first: compare what changed with `internals.py`, run
`tests.support.compare_tokenizers`, then update the constants.
"""

import hashlib
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from sentencepiece import sentencepiece_model_pb2 as model_pb
from tensorflow.python.framework import op_def_registry
from tensorflow_text.python.ops import (
    fast_bert_normalizer,
    fast_sentencepiece_tokenizer,
    fast_wordpiece_tokenizer,
    sentencepiece_tokenizer,
)

from bertfam_tf.text.kernels import internals
from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.merges import Merger
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

VERSION = "2.20.1"
SOURCES = {
    fast_bert_normalizer.FastBertNormalizer.__init__: "3203021d64e3",
    fast_sentencepiece_tokenizer.FastSentencepieceTokenizer.__init__: "7b3258d21c45",
    fast_wordpiece_tokenizer.FastWordpieceTokenizer.__init__: "30ac8b71d181",
    sentencepiece_tokenizer.SentencepieceTokenizer.__init__: "012a82ff97bb",
    sentencepiece_tokenizer._SentencepieceModelResource: "271a28ad9b43",
}
OPERATIONS = {
    "SentencepieceOp": "0798c24f70de",
    "TFText>ByteSplitByOffsets": "6eb97db4f5db",
    "TFText>ByteSplitWithOffsets": "c0d43b039194",
}


def _hash(text):
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def test_the_version_is_the_one_that_was_compared():
    assert tf_text.__version__ == VERSION


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__qualname__)
def test_python_sources(source):
    assert _hash(inspect.getsource(source)) == SOURCES[source]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    assert _hash(str(op_def_registry.get(name))) == OPERATIONS[name]


def test_the_normalizer_reads_our_character_maps():
    characters = CharacterMap()
    characters.put(ord("é"), "ee")
    characters.put([ord("x"), 0x1F600], "")
    characters.put(0, "zero")
    kernel = characters.kernel()
    texts = [b"caf\xc3\xa9x\xf0\x9f\x98\x80!", b"\0a", b"a\xff\xe4\xb8b", "日本".encode(), b""]
    found, source = kernel.normalize_with_offsets(texts)
    assert found.numpy().tolist() == [
        b"cafee!", b"zeroa", b"a\xef\xbf\xbd\xef\xbf\xbdb", "日本".encode(), b"",
    ]  # fmt: skip
    assert source.to_list()[0] == [0, 1, 2, 3, 3, 10, 11]
    others = CharacterMap("?")
    others.keep(ord("a"))
    assert others.kernel(invalid=b"!").normalize([b"ab\xff"]).numpy().tolist() == [b"a?!"]


def test_the_wordpiece_kernel_reads_our_sentence_models():
    kernel = internals.fast_wordpiece(["<unk>", "a", "##b", "c"], 100, "##", "<unk>")
    ids, starts, ends = kernel.tokenize_with_offsets(["ab c  cc"])
    assert ids.to_list() == [[1, 2, 3, 0]]
    assert [starts.to_list(), ends.to_list()] == [[[0, 1, 3, 6]], [[1, 2, 4, 8]]]
    # It has no nodes for punctuation, unlike tensorflow-text's models, but still breaks there.
    assert kernel.tokenize(["a!c"]).to_list() == [[1, 0, 3]]
    assert internals.breaks_words("中")
    assert not internals.breaks_words("a")


def test_a_tokenizer_asserts_nothing_in_its_graph():
    """To trace the assertions takes longer than the rest."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]
    graph = WordPieceTokenizer(pieces)._ids_and_offsets.get_concrete_function().graph
    functions = graph.as_graph_def().library.function
    operations = {node.op for function in functions for node in function.node_def}
    operations |= {operation.type for operation in graph.get_operations()}
    assert "TFText>ByteSplitWithOffsets" in operations
    assert "Assert" not in operations


def _unigram(*pieces):
    model = model_pb.ModelProto()
    model.pieces.add(piece="<unk>", type=model_pb.ModelProto.SentencePiece.UNKNOWN)
    for piece, score in pieces:
        model.pieces.add(piece=piece, score=score)
    model.trainer_spec.model_type = model_pb.TrainerSpec.UNIGRAM
    return model.SerializeToString()


def test_the_score_of_unknown_characters_is_ours():
    """The kernel's default is 10 below the lowest score."""
    model = _unigram(("▁", -1.0), ("a", -3.0), ("b", -7.0))
    kernel = internals.fast_sentencepiece(model, -17.0, tolerance=20.0)
    assert kernel.tokenize(["b"]).to_list() == [[1, 3]]
    changed = internals.fast_sentencepiece(model, -17.0, tolerance=20.0)._converted_model.numpy()
    plain = tf_text.FastSentencepieceTokenizer(model)._converted_model.numpy()
    assert (changed == plain).all()
    with pytest.raises(RuntimeError, match="converts SentencePiece models to an unknown layout"):
        internals.fast_sentencepiece(model, -100.0, tolerance=20.0)
    other = internals.fast_sentencepiece(model, -16.0, tolerance=20.0)._converted_model.numpy()
    where = np.flatnonzero(other != plain)
    assert 0 < len(where) <= 4
    assert np.ptp(where) < 4


def test_sentencepiece_survives_that_the_kernel_cache_is_emptied():
    merger = Merger({"a": -1, "b": -1, "ab": 0}, {"a": 1, "b": 2, "ab": 3}, unk_id=0)
    function = tf.function(lambda words: merger(words).values, [tf.TensorSpec([None], tf.string)])
    assert function(tf.constant(["aba"])).numpy().tolist() == [3, 1]
    keras.utils.set_random_seed(1)
    assert function(tf.constant(["aba"])).numpy().tolist() == [3, 1]


def test_parts_of_texts():
    parts = internals.parts_of(tf.constant(["abc", "", "de"]), [0, 1, 0], [1, 3, 2], [0, 2, 2, 3])
    assert parts.numpy().tolist() == [b"a", b"bc", b"de"]
