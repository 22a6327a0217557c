"""Tokenizer files that run code, hang or exhaust memory: each raises a ValueError quickly."""

import collections
import json
import pickle

import pytest
from sentencepiece import sentencepiece_model_pb2 as model_pb

from bertfam_tf.sources import CheckpointError
from bertfam_tf.text import WordPieceTokenizer, load_tokenizer, pickles
from bertfam_tf.text.kernels.charsmap import Rules
from bertfam_tf.text.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.support.weight_mutations import trie_bomb

# A pickle that sets collections.Counter.__add__ = len for the whole process, followed by a
# vocabulary.
_PATCH = b"\x80\x02ccollections\nCounter\n}(X\x07\x00\x00\x00__add__cbuiltins\nlen\nub0"
_STATE = {"idx2sym": ["<eos>", "<unk>", "the"], "delimiter": None, "lower_case": False}


def test_a_pickle_changes_no_class(tmp_path):
    before = collections.Counter.__add__
    (tmp_path / "vocab.pkl").write_bytes(_PATCH + pickle.dumps(_STATE, 2)[2:])
    try:
        assert load_tokenizer(tmp_path).vocabulary == _STATE["idx2sym"]
        assert collections.Counter.__add__ is before
    finally:
        collections.Counter.__add__ = before


class _Vocabulary:
    """As in old versions of transformers: the attributes of a class that no longer exists."""

    def __init__(self, state):
        self.__dict__ = state


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol(protocol):
    words = ["<eos>", "größe", "x" * 300]
    state = {
        "counter": collections.Counter({word: 70_000 + i for i, word in enumerate(words)}),
        "sym2idx": collections.OrderedDict((word, i) for i, word in enumerate(words)),
        "idx2sym": words,
        "special": ["<eos>"],
        "sizes": (1, -2, 2**40, 2.5, True, None, (), (1,), (1, 2)),
        "lower_case": False,
        "object": _Vocabulary({"a": 1}),
        "unordered": {1, 2},
    }
    found = pickles.read(pickle.dumps(state, protocol))
    for name in ("counter", "sym2idx", "idx2sym", "special", "sizes", "lower_case"):
        assert found[name] == state[name], name
    assert type(found["counter"]) is dict
    assert isinstance(found["object"], pickles._Opaque)


def test_a_pickle_cannot_copy_for_ever():
    copies = b"ccollections\nCounter\nh\x00\x85R0" * 10**5
    assert pickles.read(b"\x80\x02}q\x00" + copies + b".") == {}


@pytest.mark.parametrize("levels", [0, 40])
def test_rules_that_go_round_or_double(levels):
    """A node that is its own child, and 2^40 keys of 40 nodes."""
    with pytest.raises(ValueError, match="form a cycle" if not levels else "more than 1048576"):
        Rules(trie_bomb(levels)).check()
    proto = model_pb.ModelProto()
    for piece, kind in (("<unk>", 2), ("▁a", 1), ("a", 1), ("b", 1)):
        proto.pieces.add(piece=piece, type=kind, score=-1.0)
    proto.normalizer_spec.precompiled_charsmap = trie_bomb(levels)
    with pytest.raises(ValueError, match="normalization rule"):
        SentencePieceTokenizer(proto.SerializeToString())


def test_rules_that_point_beyond_their_end():
    data = bytearray(trie_bomb(1))
    data[4 + 4 * 256 + 3 :: 4] = b"\x7f" * len(data[4 + 4 * 256 + 3 :: 4])
    with pytest.raises(ValueError, match="outside of the table"):
        Rules(bytes(data)).check()


def _whole(**more):
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "unk_token": "[UNK]"}
    content = {
        "model": {**model, "vocab": {"[UNK]": 0, "a": 1}},
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }
    return {"tokenizer.json": content | more}


VOCABULARY = {"vocab.txt": "[UNK]\na\n"}
CASES = {
    "model is a list": (_whole(model=[]), "model"),
    "model is text": (_whole(model="x"), "model is 'x', expected an object"),
    "vocab is a list": (_whole(model={"type": "WordPiece", "vocab": [1]}), "expected"),
    "normalizer is a number": (_whole(normalizer=3), "normalizer is 3, expected an object"),
    "added tokens are a dict": (_whole(added_tokens={"a": 1}), "added_tokens"),
    "added tokens are numbers": (_whole(added_tokens=[1]), "added_tokens"),
    "added token without id": (_whole(added_tokens=[{"content": "a"}]), "has the ids 1 and None"),
    "config is nested": ({**VOCABULARY, "tokenizer_config.json": "[" * 10**5}, "nested too deeply"),
    "token is a list": ({**VOCABULARY, "tokenizer_config.json": {"cls_token": [1]}}, "cls_token"),
    "layout is text": ({**VOCABULARY, "tokenizer_config.json": {"layout": "x"}}, "layout is 'x'"),
    "tokens are a number": (
        {**VOCABULARY, "tokenizer_config.json": {"additional_special_tokens": 3}},
        "additional_special_tokens is 3, expected a list",
    ),
    "word of 2^40 letters": (
        {**VOCABULARY, "tokenizer_config.json": {"max_input_chars_per_word": 2**40}},
        "max_chars_per_word must be from 1 to .*, got 1099511627776",
    ),
    "lower case is a list": (
        {**VOCABULARY, "tokenizer_config.json": {"do_lower_case": [0]}},
        r"do_lower_case is \[0\], expected true or false",
    ),
    "class is a list": ({**VOCABULARY, "tokenizer_config.json": {"tokenizer_class": ["x"]}}, "x"),
    "model type is a list": ({**VOCABULARY, "config.json": {"model_type": ["x"]}}, "x"),
    "ids are text": (
        {"vocab.json": {"a": "0"}, "merges.txt": "a b\n"},
        "a piece has '0', expected a number as its id",
    ),
    "ids are true": ({"vocab.json": {"a": True}, "merges.txt": "a b\n"}, "a piece has True"),
}


@pytest.mark.parametrize("name", CASES)
def test_files_that_make_no_sense(tmp_path, name):
    files, error = CASES[name]
    for file, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / file).write_text(text)
    with pytest.raises(CheckpointError, match=f"(?s){tmp_path.name}.*{error}"):
        load_tokenizer(tmp_path)


def test_special_files(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    (tmp_path / "tokenizer_config.json").mkdir()
    assert load_tokenizer(tmp_path).vocabulary == ["[UNK]", "a"]
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "vocab.txt").symlink_to("vocab.txt")
    with pytest.raises(CheckpointError, match="found no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read|is not a file"):
        WordPieceTokenizer(tmp_path)
