"""Metadata of `.tflite` files: nothing else changes, and other readers' rules hold."""

import io
import logging
import string
import zipfile

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from tensorflow.lite.python import schema_py_generated as schema

import bertfam_tf as bf
from bertfam_tf.export.mobile_apis import add_metadata, incompatibility, tokenizer_incompatibility
from bertfam_tf.export.tflite_metadata import with_metadata
from bertfam_tf.text import SentencePieceTokenizer, WordPieceTokenizer, WordTokenizer
from bertfam_tf.text.special_tokens import CLS_A_SEP_SEP
from tests.support.tflite_metadata import Table, metadata_table, read_metadata

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "##ly", "é", "日"]
LABELS = ["negative", "neutral", "positive"]
ROW = {
    "ids": np.array([[2, 4, 5, 3, 0, 0]], np.int32),
    "mask": np.array([[1, 1, 1, 1, 0, 0]], np.int32),
    "segment_ids": np.array([[0, 0, 1, 1, 0, 0]], np.int32),
}


def _converted(answer, directory, kind=tf.int32):
    specs = [tf.TensorSpec([1, 6], kind, name) for name in ROW]
    function = tf.function(answer, specs, autograph=False)
    tf.saved_model.save(tf.Module(), str(directory), function.get_concrete_function())
    return tf.lite.TFLiteConverter.from_saved_model(str(directory)).convert()


def _hidden(ids, mask, segment_ids):
    random = np.random.default_rng(0)
    table = tf.constant(random.normal(size=(len(VOCABULARY), 5)), tf.float32)
    segments = tf.constant(random.normal(size=(2, 5)), tf.float32)
    hidden = tf.gather(table, ids) + tf.gather(segments, segment_ids)
    return hidden * tf.expand_dims(tf.cast(mask, tf.float32), -1), random


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A classifier of six tokens that depends on each input."""

    def answer(ids, mask, segment_ids):
        hidden, random = _hidden(ids, mask, segment_ids)
        kernel = tf.constant(random.normal(size=(5, 3)), tf.float32)
        return {"probability": tf.nn.softmax(tf.reduce_sum(hidden, 1) @ kernel)}

    return _converted(answer, tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def span_model(tmp_path_factory):
    def answer(ids, mask, segment_ids):
        hidden, _ = _hidden(ids, mask, segment_ids)
        return {"start_logits": hidden[..., 0], "end_logits": hidden[..., 1]}

    return _converted(answer, tmp_path_factory.mktemp("spans"))


TEXTS = {
    "name": "SST-2",
    "description": "Größe 日本語 🙂",
}


@pytest.fixture(scope="module")
def written(model):
    return with_metadata(model, **TEXTS, vocabulary=VOCABULARY, labels=LABELS)


def _run(model):
    return Interpreter(model_content=model).get_signature_runner()(**ROW)


def _zipped(model):
    with zipfile.ZipFile(io.BytesIO(model)) as archive:
        assert archive.testzip() is None
        return {info.filename: info for info in archive.infolist()}, {
            name: archive.read(name) for name in archive.namelist()
        }


# What others read ------------------------------------------------------------------------------


def test_metadata_are_those_of_the_published_schema(written):
    metadata = metadata_table(written)
    assert metadata.content[4:8] == b"M001"
    assert [metadata.text(field) for field in (0, 1)] == [*TEXTS.values()]
    assert metadata.text(7) == "1.1.0"
    [graph] = metadata.tables(3)
    [output] = graph.tables(3)
    [labels] = output.tables(6)
    assert (labels.text(0), labels.byte(2)) == ("labels.txt", 2)
    [unit] = graph.tables(5)
    [vocabulary] = unit.table(1).tables(0)
    assert unit.byte(0) == 4
    assert (vocabulary.text(0), vocabulary.byte(2)) == ("vocab.txt", 5)


@pytest.mark.parametrize("which", ["model", "span_model"])
def test_entries_follow_the_order_of_the_tensors(which, request):
    model = with_metadata(request.getfixturevalue(which), name="x", vocabulary=VOCABULARY)
    [graph] = metadata_table(model).tables(3)
    interpreter = Interpreter(model_content=model)
    runner = interpreter.get_signature_runner()
    for field, details, named in (
        (2, interpreter.get_input_details(), runner.get_input_details()),
        (3, interpreter.get_output_details(), runner.get_output_details()),
    ):
        places = {detail["index"]: name for name, detail in named.items()}
        expected = [places[detail["index"]] for detail in details]
        assert [entry.text(0) for entry in graph.tables(field)] == expected


def test_files_are_stored_uncompressed_and_as_they_were(written):
    infos, files = _zipped(written)
    assert files == {
        "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\n##ly\né\n日\n".encode(),
        "labels.txt": b"negative\nneutral\npositive\n",
    }
    assert {info.compress_type for info in infos.values()} == {zipfile.ZIP_STORED}
    # Offsets in the archive count from the start of the file, so readers need no correction.
    for name, info in infos.items():
        assert written[info.header_offset :].startswith(b"PK\3\4")
        start = info.header_offset + 30 + len(name)
        assert written[start : start + info.file_size] == files[name]


def test_texts_files_and_names_are_written(written, span_model):
    found = read_metadata(written)
    assert {name: getattr(found, name) for name in TEXTS} == TEXTS
    assert sorted(found.inputs) == ["ids", "mask", "segment_ids"]
    assert found.outputs == ["probability"]
    assert found.tokenizer == "vocab.txt"
    bare = read_metadata(with_metadata(span_model, name="spans"))
    assert (bare.tokenizer, bare.files, bare.description) == ("", {}, "")
    assert sorted(bare.outputs) == ["end_logits", "start_logits"]


def test_the_same_bytes_each_time(model, written):
    again = with_metadata(model, **TEXTS, vocabulary=VOCABULARY, labels=LABELS)
    assert again == written


# The model stays what it was -------------------------------------------------------------------


@pytest.mark.parametrize("which", ["model", "span_model"])
def test_answers_are_equal_before_and_after(which, request):
    model = request.getfixturevalue(which)
    before, after = _run(model), _run(with_metadata(model, name="x", vocabulary=VOCABULARY))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_weights_are_equal_and_as_aligned(model, written):
    def buffers(content):
        return [buffer.bytes(0) for buffer in Table(content).tables(4) if buffer.has(0)]

    old, new = buffers(model), buffers(written)
    assert new[: len(old)] == old
    assert len(new) == len(old) + 1
    shift = written.find(model)
    assert shift > 0
    assert shift % 64 == 0


def test_entries_that_there_were_stay(model, written):
    before = schema.ModelT.InitFromPackedBuf(model, 0)
    after = schema.ModelT.InitFromPackedBuf(written, 0)
    assert [entry.name for entry in after.metadata[:-1]] == [
        entry.name for entry in before.metadata
    ]
    assert (after.version, after.description) == (before.version, before.description)
    assert len(after.subgraphs) == len(before.subgraphs)
    assert len(after.operatorCodes) == len(before.operatorCodes)


# Hostile labels and vocabularies ---------------------------------------------------------------


def test_a_label_is_a_line(model):
    labels = ["not\ngood\r\n", "日本語 🙂\u2028é", ""]
    _, files = _zipped(with_metadata(model, name="x", labels=labels))
    lines = files["labels.txt"].decode("utf-8").split("\n")
    assert lines == ["not good", "日本語 🙂 é", "", ""]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_labels_are_as_many_as_scores(model, count):
    with pytest.raises(ValueError, match=rf"{count} labels for the outputs probability \[1, 3\]"):
        with_metadata(model, name="x", labels=["a"] * count)


def test_labels_want_one_output(span_model):
    expected = r"3 labels for the outputs (end|start)_logits \[1, 6\], "
    with pytest.raises(ValueError, match=expected):
        with_metadata(span_model, name="x", labels=LABELS)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ([*VOCABULARY, ""], "Piece 8 is ''"),
        ([*VOCABULARY, "a\nb"], r"Piece 8 is 'a\\nb'"),
        (["[UNK]", "[CLS]", "good"], r"lacks \[SEP\]"),
    ],
)
def test_a_vocabulary_that_readers_read_otherwise(model, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        with_metadata(model, name="x", vocabulary=vocabulary)


def test_texts_that_are_no_unicode_are_refused(model):
    with pytest.raises(ValueError, match="surrogates"):
        with_metadata(model, name="\ud800")
    with pytest.raises(ValueError, match="surrogates"):
        with_metadata(model, name="x", labels=["a", "b", "\ud800"])


# Damaged and foreign files --------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"TFL3", b"PK\3\4" + bytes(100), bytes(1000)])
def test_what_is_no_model_is_refused(content):
    with pytest.raises(ValueError, match="cannot be read"):
        with_metadata(content, name="x")


def test_a_model_cut_anywhere_is_refused(model):
    for size in [*range(0, len(model), 37), len(model) - 1]:
        with pytest.raises(ValueError, match="cannot be read"):
            with_metadata(model[:size], name="x")


def test_metadata_are_written_once(written):
    with pytest.raises(ValueError, match="already has metadata"):
        with_metadata(written, name="x")


def test_other_inputs_take_no_tokenizer(tmp_path):
    model = _converted(
        lambda ids, mask, segment_ids: {"probability": tf.cast(ids + mask, tf.float32)},
        tmp_path,
        tf.int64,
    )
    with pytest.raises(ValueError, match=r"expected ids, mask, segment_ids, int32 \[1, L\]"):
        with_metadata(model, name="x", vocabulary=VOCABULARY)


# Which tasks fit -------------------------------------------------------------------------------

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_letters]


@pytest.fixture(scope="module")
def backbone(smallest):
    return bf.load_backbone(smallest)


def _sentence_piece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a good film", "a goodly day"]),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        control_symbols=["[CLS]", "[SEP]"],
    )
    tokens = {"cls_token": "[CLS]", "sep_token": "[SEP]"} | options
    return SentencePieceTokenizer.from_config(
        {"model": model.getvalue(), "lower_case": True, **tokens}
    )


def _classifier(backbone, tokenizer=None, pair=False):
    tokenizer = tokenizer or WordPieceTokenizer(PIECES)
    return bf.TextClassifier(backbone, tokenizer, LABELS, pair=pair, max_length=16)


def test_an_uncased_classifier_brings_its_vocabulary(backbone, model, caplog):
    task = _classifier(backbone)
    found = read_metadata(add_metadata(model, task, length=6))
    assert found.tokenizer == "vocab.txt"
    assert found.files["vocab.txt"].decode().split("\n")[:-1] == PIECES
    assert found.files["labels.txt"] == b"negative\nneutral\npositive\n"
    assert found.name == "TextClassifier"
    assert found.description == "TextClassifier of the family bert; texts of up to 6 tokens."
    assert not caplog.records


def test_sentence_piece_brings_its_model(backbone, model):
    tokenizer = _sentence_piece()
    written = add_metadata(model, _classifier(backbone, tokenizer), length=6)
    found = read_metadata(written)
    assert found.tokenizer == "spiece.model"
    assert found.files["spiece.model"] == tokenizer.get_config()["model"]
    [unit] = metadata_table(written).tables(3)[0].tables(5)
    assert unit.byte(0) == 5
    assert unit.table(1).tables(0)[0].text(0) == "spiece.model"


def test_a_cased_classifier_brings_none_and_says_so(backbone, model, caplog):
    task = _classifier(backbone, WordPieceTokenizer(PIECES, lower_case=False))
    with caplog.at_level(logging.WARNING):
        found = read_metadata(add_metadata(model, task, length=6))
    assert (found.tokenizer, sorted(found.files)) == ("", ["labels.txt"])
    [record] = caplog.records
    assert "will not load this file" in record.getMessage()
    assert "this vocabulary is cased" in record.getMessage()


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (lambda: WordPieceTokenizer(PIECES, split_chinese=False), "splits Chinese text"),
        (
            lambda: WordPieceTokenizer.from_config({"vocabulary": PIECES, "sep_token": "[MASK]"}),
            "look up [SEP], the sep_token of this tokenizer is '[MASK]'",
        ),
        (lambda: WordPieceTokenizer(PIECES, layout=CLS_A_SEP_SEP), "put [CLS] before and [SEP]"),
        (lambda: _sentence_piece(cls_token="<s>"), "look up [CLS], the cls_token"),
        (lambda: _sentence_piece(layout=CLS_A_SEP_SEP), "put [CLS] before and [SEP]"),
        (lambda: WordTokenizer(["<unk>", "<eos>", "a"]), "not WordTokenizer"),
    ],
)
def test_tokenizers_that_are_not_theirs(tokenizer, reason):
    assert reason in tokenizer_incompatibility(tokenizer())


def test_tasks_that_are_not_theirs(backbone, model, caplog):
    tokenizer = WordPieceTokenizer(PIECES)
    assert incompatibility(_classifier(backbone, pair=True), 128) == (
        "they take single texts, and this task takes pairs."
    )
    tagger = bf.TokenTagger(backbone, tokenizer, ["O", "B-PER", "I-PER"], max_length=16)
    assert incompatibility(tagger, 128) == "they have no API for TokenTagger."
    found = read_metadata(add_metadata(model, tagger, length=6))
    assert (found.tokenizer, [*found.files]) == ("", ["labels.txt"])
    assert not caplog.records
    spans = bf.SpanQA(backbone, tokenizer, max_length=16)
    assert incompatibility(spans, 384) == ""
    assert (
        incompatibility(spans, 128) == "BertQuestionAnswerer takes 384 tokens, this file takes 128."
    )


@pytest.mark.extended
def test_exports_bring_metadata(backbone, tmp_path):
    file = _classifier(backbone).export_tflite(tmp_path / "m.tflite", inputs="ids", length=8)
    found = read_metadata(file.read_bytes())
    assert sorted(found.inputs) == ["ids", "mask", "segment_ids"]
    assert found.outputs == ["probability"]
    assert sorted(found.files) == ["labels.txt", "vocab.txt"]
