"""Everything that depends on the private parts of tensorflow-text.

tensorflow-text itself builds only two fixed character maps for its normalizer, and WordPiece models
that contain every punctuation mark and Chinese character there is. The flatbuffers that its Fast*
kernels read allow more; they are written here. Two kernels are changed after they are made.

``tests/text/test_internals.py`` fails when tensorflow-text changes what this module relies on.
"""

from __future__ import annotations

import hashlib

import flatbuffers
import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from flatbuffers import encode, number_types, packer
from flatbuffers.table import Table
from tensorflow_text.python.ops import sentencepiece_tokenizer as library
from tensorflow_text.python.ops.byte_splitter import gen_byte_splitter

from bertfam_tf.text.kernels.double_array import PAGE, DoubleArray

# The characters that are Chinese in FastWordpieceTokenizer's own tables.
_CHINESE = (
    (0x4E00, 0xA000), (0x3400, 0x4DC0), (0x20000, 0x2A6E0), (0x2A700, 0x2CEB0),
    (0xF900, 0xFB00), (0x2F800, 0x2FA20),
)  # fmt: skip
_MAX_REPLACEMENT_BYTES = 63
_DIFFERENT = 1 << 30
_LENGTH_BITS = 6
# The position of the score of unknown characters in the field table of FastSentencepiece's model.
_UNKNOWN_SCORE_SLOT = 4 + 2 * 4


# Kernels.


class _SharedModel(library._SentencepieceModelResource):
    """A SentencePiece model that lives as long as the process.

    A resource without a name belongs to the kernel that made it and is freed with TensorFlow's
    kernel cache, which ``keras.utils.set_random_seed`` empties. The name is a hash of the content,
    so that equal models are loaded once.
    """

    def _create_resource(self) -> tf.Tensor:
        name = hashlib.sha256(self._model).hexdigest()
        return library.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=f"sentencepiece_{name}"
        )


def sentencepiece(model: bytes) -> tf_text.SentencepieceTokenizer:
    """Returns SentencePiece's own kernel, for a serialized ``ModelProto``."""
    kernel = tf_text.SentencepieceTokenizer(model)
    kernel._model_resource = _SharedModel(model, kernel._model_resource._name)
    return kernel


def fast_sentencepiece(
    model: bytes, unknown_score: float, tolerance: float
) -> tf_text.FastSentencepieceTokenizer:
    """Returns the FastSentencepiece kernel with a given score for unknown characters.

    Args:
        model: a serialized ``ModelProto``.
        unknown_score: the score. The kernel's default is derived from the lowest score in the
            model, which pieces added to a vocabulary may lower; ties between segmentations are
            decided by the last bit of sums.
        tolerance: how far below ``unknown_score`` the kernel's default may be.

    Raises:
        RuntimeError: if the converted model does not have the layout of tensorflow-text 2.20.
    """
    kernel = tf_text.FastSentencepieceTokenizer(model)
    buffer = kernel._converted_model.numpy()
    root = encode.Get(packer.uoffset, buffer, 0)
    at = root + Table(buffer, root).Offset(_UNKNOWN_SCORE_SLOT)
    score = buffer[at : at + 4].view(np.float32)
    if not unknown_score - tolerance < score[0] <= unknown_score:
        raise RuntimeError(
            f"tensorflow-text {tf_text.__version__} converts SentencePiece models to an unknown "
            "layout, expected the layout of 2.20."
        )
    score[0] = unknown_score
    kernel._converted_model = tf.constant(buffer)
    return kernel


def fast_wordpiece(
    vocabulary: list[str], max_bytes_per_word: int, suffix: str, unknown: str
) -> tf_text.FastWordpieceTokenizer:
    """Returns the FastWordpiece kernel for texts whose words are separated by spaces.

    Args:
        vocabulary: the pieces in the order of their ids, none of them longer than 256 bytes.
        max_bytes_per_word: longer words are one unknown piece.
        suffix: the prefix of pieces that continue a word, such as "##".
        unknown: the piece for unknown words.
    """
    word_model = tf_text.build_fast_wordpiece_model(
        vocabulary, max_bytes_per_word, suffix, unknown, True, False
    )
    return tf_text.FastWordpieceTokenizer(
        model_buffer=tf.constant(_sentence_model(word_model)), token_out_type=tf.int32
    )


def breaks_words(char: str) -> bool:
    """Returns whether FastWordpiece always splits at a character because it is Chinese."""
    return any(start <= ord(char) < end for start, end in _CHINESE)


def bytes_of(texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns the bytes of texts, uint8 [batch, (bytes)].

    Args:
        texts: string [batch].
    """
    # ByteSplitter.split asserts that the row splits of its own kernel are valid, three times, which
    # takes half of the time to trace a tokenizer.
    values, splits, _, _ = gen_byte_splitter.tf_text_byte_split_with_offsets(input_values=texts)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def parts_of(texts: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    """Returns substrings.

    Args:
        texts: string [batch].
        starts: integer [n], the first byte of each substring.
        ends: integer [n], its end (exclusive).
        splits: int64 [batch + 1], row splits: which substrings belong to which text.

    Returns:
        string [n].
    """
    # ByteSplitter.split_by_offsets validates ragged arguments, which takes longer than splitting.
    return gen_byte_splitter.tf_text_byte_split_by_offsets(
        input_values=texts,
        input_start_offsets=tf.cast(starts, tf.int32),
        input_end_offsets=tf.cast(ends, tf.int32),
        input_row_splits=splits,
    )[0]


# Flatbuffers.


def character_map_model(strings: list[bytes], choice: np.ndarray, invalid: bytes) -> np.ndarray:
    """Builds a FastBertNormalize model from a character map.

    Args:
        strings: the replacements. The first one means "unchanged", whatever its value.
        choice: int [0x110000], for each code point the index of its replacement.
        invalid: the replacement of a byte sequence that is not UTF-8. The kernel splits such input
            into the sequences that ``bytes.decode(errors="replace")`` would replace, one by one.

    Returns:
        uint8, the flatbuffer.

    Raises:
        ValueError: if a replacement is longer than 63 bytes, or the map outgrows the format.
    """
    pool = bytearray()
    positions: dict[bytes, int] = {}

    def encoded(string: bytes) -> int:
        if len(string) > _MAX_REPLACEMENT_BYTES:
            raise ValueError(f"replacement longer than {_MAX_REPLACEMENT_BYTES} bytes: {string!r}.")
        if string not in positions:
            positions[string] = len(pool)
            pool.extend(string)
        return _DIFFERENT | positions[string] << _LENGTH_BITS | len(string)

    trie = DoubleArray()
    invalid_value = encoded(invalid)
    zero = encoded(strings[choice[0]]) if choice[0] else 0
    bases = np.array([-1] + [trie.value(encoded(string)) for string in strings[1:]])[choice]

    # Level by level from the last byte up; F4, the last first byte, has only part of its children.
    last = trie.blocks(bases, invalid_value)
    middle = trie.blocks(np.concatenate([last, np.full(-len(last) % 4096, -1)]), invalid_value)
    four = trie.blocks(middle, invalid_value)
    first = np.full(PAGE, trie.value(invalid_value))
    first[:0x80] = bases[:0x80]
    first[0xC2:0xE0] = last[2:32]
    first[0xE0:0xF0] = middle[:16]
    first[0xF0:0xF5] = four[:5]
    trie.first_bytes(first[1:])
    units = trie.array()

    builder = flatbuffers.Builder(units.nbytes + len(pool) + 256)
    pool_offset = builder.CreateNumpyVector(np.frombuffer(bytes(pool) or b"\0", np.uint8))
    trie_offset = builder.CreateNumpyVector(units)
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, trie_offset, 0)
    builder.PrependInt32Slot(2, zero, 0)
    builder.PrependUOffsetTRelativeSlot(3, pool_offset, 0)
    builder.Finish(builder.EndObject())
    return np.frombuffer(bytes(builder.Output()), np.uint8)


def _sentence_model(word_model: bytes) -> np.ndarray:
    """Converts a FastWordpiece model for single words into one for sentences.

    The sentence models that tensorflow-text builds have a node for each punctuation mark and
    Chinese character of its own Unicode tables. Text whose words are separated by spaces needs
    none of them, and the model is smaller and does not depend on those tables.

    Args:
        word_model: the result of ``tensorflow_text.build_fast_wordpiece_model`` with
            ``no_pretokenization=True``.

    Returns:
        uint8, the flatbuffer.
    """
    root = encode.Get(packer.uoffset, word_model, 0)
    table = Table(word_model, root)
    uint32 = number_types.Uint32Flags

    def vector(field: int, dtype: type) -> np.ndarray:
        offset = table.Offset(4 + 2 * field)
        if not offset:
            return np.zeros(0, dtype)
        count = table.VectorLen(offset)
        return np.frombuffer(word_model, dtype, count, table.Vector(offset))

    def number(field: int) -> int:
        return int(table.GetSlot(4 + 2 * field, 0, uint32))

    builder = flatbuffers.Builder(len(word_model) + 256)
    # Field 1 is a vector of pairs of uint32, which a vector of uint64 equals byte for byte.
    vectors = {0: np.uint32, 1: np.uint64, 2: np.int32, 8: np.int32}
    offsets = {field: builder.CreateNumpyVector(vector(field, dtype))
               for field, dtype in vectors.items()}  # fmt: skip
    for field in (5, 6):
        text = table.String(table.Offset(4 + 2 * field) + table.Pos)
        offsets[field] = builder.CreateString(text)
    builder.StartObject(14)
    for field, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    for field in (3, 4, 7, 9):
        builder.PrependUint32Slot(field, number(field), 0)
    builder.PrependBoolSlot(10, True, False)
    builder.Finish(builder.EndObject())
    return np.frombuffer(bytes(builder.Output()), np.uint8)
