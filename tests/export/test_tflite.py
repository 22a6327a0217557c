"""Files for phones: LiteRT's answers are the task's, without Flex."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import bertfam_tf as bf
from bertfam_tf.export import ExportError, tflite
from bertfam_tf.export.tflite import interpreter, operations
from bertfam_tf.models import unpadding
from bertfam_tf.text import load_tokenizer
from tests.export.test_every_task import (
    LABELS,
    TAGS,
    TEXTS,
    TOKENIZERS,
    small_backbone,
)
from tests.selection import each_once, in_full, only_in
from tests.support.exports import perturb

LENGTH = 24
FAMILIES = ["bert", "distilbert", "albert", "tinybert", "electra", "roberta"]
# One of each tokenizer and kind.
QUICK = [("bert", "tagger"), ("albert", "classifier"), ("roberta", "qa")]
PAIRS = [(family, kind) for family in FAMILIES for kind in ("classifier", "tagger", "qa")]
OTHER_PAIRS = [("xlnet", "qa"), ("xlm", "tagger"), ("bert", "masked"), ("bilstm", "tagger")]
OTHER_PAIRS += [
    ("bert", "labels"),
    ("deberta", "classifier"),
    ("deberta", "masked"),
    ("mobilebert", "masked"),
]
WORDS = [*TEXTS, b"the good cast of a bad film"]


@pytest.fixture(scope="module")
def task_of(tiny):
    """Tasks that no test changes, made once."""
    return functools.cache(lambda kind, family: _task(kind, family, tiny))


@pytest.fixture(scope="module")
def whole_size(task_of, tmp_path_factory):
    """The bytes of a task's file that is not quantized."""

    @functools.cache
    def size(kind, family):
        file = tmp_path_factory.mktemp("whole") / "m.tflite"
        return task_of(kind, family).export_tflite(file, inputs="ids", length=LENGTH).stat().st_size

    return size


def _task(kind, family, tiny):
    make = {"roberta": "roberta", "albert": "albert", "xlnet": "albert"}.get(family, "bert")
    tokenizer = TOKENIZERS[make](tiny)
    options = dict(max_length=48)
    if family == "xlm":
        options["language_id"] = 1
    backbone = small_backbone(family, tokenizer, width=32)
    made = {
        "classifier": lambda: bf.TextClassifier(backbone, tokenizer, LABELS, pair=False, **options),
        "labels": lambda: bf.MultiLabelClassifier(
            backbone, tokenizer, LABELS, pair=True, **options
        ),
        "regressor": lambda: bf.TextRegressor(backbone, tokenizer, pair=True, **options),
        "embedder": lambda: bf.TextEmbedder(backbone, tokenizer, **options),
        "tagger": lambda: bf.TokenTagger(backbone, tokenizer, TAGS, **options),
        "qa": lambda: bf.SpanQA(backbone, tokenizer, **options),
        "choice": lambda: bf.MultipleChoice(backbone, tokenizer, 2, pair=False, **options),
        "masked": lambda: bf.MaskedLM(backbone, tokenizer, **options),
    }
    task = made[kind]()
    perturb(task.weights, 0.3)
    return task


def _rows(task):
    """Ids of all lengths, padded as the task pads them."""
    rng = np.random.default_rng(0)
    left = task.tokenizer.layout.pad_left
    for count in (1, 2, 9, LENGTH):
        mask = np.zeros((1, LENGTH), np.int32)
        mask[:, LENGTH - count if left else 0 : LENGTH if left else count] = 1
        ids = rng.integers(5, task.tokenizer.vocab_size, mask.shape).astype(np.int32) * mask
        segments = np.int32(np.cumsum(mask, 1) > count // 2) * mask
        yield {"ids": ids, "mask": mask, "segment_ids": segments}


def _expected(task, row):
    named = dict(zip(("token_ids", "padding_mask", "segment_ids"), row.values(), strict=True))
    with unpadding(False):  # as on phones: at padding, logits differ otherwise
        found = task.answer_ids({name: tf.constant(named[name]) for name in task.packed_specs})
    left_out = (tf.string, tf.bool)
    return {name: value.numpy() for name, value in found.items() if value.dtype not in left_out}


NAMES = {"scores": "probability"}


@pytest.mark.extended
@only_in("full", "albert-classifier", "roberta-qa")
@pytest.mark.parametrize(
    ("family", "kind"),
    in_full(
        [*PAIRS, *OTHER_PAIRS],
        QUICK,
    ),
)
def test_ids_are_answered_as_by_the_keras_model(family, kind, task_of, tmp_path):
    task = task_of(kind, family)
    file = task.export_tflite(tmp_path / "m.tflite", inputs="ids", length=LENGTH)
    builtin, others = operations(file.read_bytes())
    assert "FULLY_CONNECTED" in builtin
    assert not others
    run = Interpreter(model_content=file.read_bytes()).get_signature_runner()
    inputs = run.get_input_details()
    assert list(inputs) == ["ids", "mask", "segment_ids"]
    assert {tuple(x["shape"]) for x in inputs.values()} == {(1, LENGTH)}
    assert {x["dtype"] for x in inputs.values()} == {np.int32}
    for row in _rows(task):
        expected = _expected(task, row)
        found = run(**row)
        assert set(found) == {NAMES.get(name, name) for name in expected}
        for name, value in expected.items():
            # Masked logits are -1e9.
            small = np.where(value > -1e8, value, 0)
            other = np.where(value > -1e8, found[NAMES.get(name, name)], 0)
            np.testing.assert_allclose(other, small, atol=1e-5 * max(1, np.abs(small).max()))


@pytest.mark.extended
def test_a_text_without_tokens_is_embedded_as_zeros(task_of, tmp_path):
    task = task_of("embedder", "bert")
    file = task.export_tflite(tmp_path / "m.tflite", inputs="ids", length=LENGTH)
    run = Interpreter(model_content=file.read_bytes()).get_signature_runner()
    empty = {name: np.zeros_like(ids) for name, ids in next(_rows(task)).items()}
    assert not _expected(task, empty)["embedding"].any()
    np.testing.assert_array_equal(run(**empty)["embedding"], _expected(task, empty)["embedding"])


@only_in("extended", "int8")
@pytest.mark.parametrize("quantize", in_full([None, "int8"], ["int8"]))
def test_an_encoder_is_one_partition(quantize, task_of, tmp_path):
    """XNNPACK runs all after the embeddings; an operation that it lacks would split the graph."""
    task = task_of("tagger", "bert")
    file = task.export_tflite(tmp_path / "m.tflite", inputs="ids", length=LENGTH, quantize=quantize)
    found = Interpreter(model_content=file.read_bytes())
    found.allocate_tensors()
    partitions = [node for node in found._get_ops_details() if node["op_name"] == "DELEGATE"]
    assert len(partitions) == 1


@pytest.mark.extended
@only_in("full", "fp16-classifier-bert", "int8-full-classifier-bert")
@pytest.mark.parametrize(
    ("quantize", "kind", "family"),
    each_once(
        [
            *((quantize, "classifier", "bert") for quantize in ("fp16", "int8", "int8-full")),
            *(("int8-full", "tagger", "bert"), ("int8", "qa", "bert")),
            *((quantize, "classifier", "bilstm") for quantize in ("fp16", "int8")),
        ],
        lambda case: case[:1],
    ),
)
def test_quantized(kind, quantize, family, task_of, whole_size, tmp_path):
    task = task_of(kind, family)
    options = dict(inputs="ids", length=LENGTH)
    if quantize == "int8-full":
        texts = [text.decode("utf-8", "replace") for text in WORDS]
        options["calibration"] = [(t, t) for t in texts] if kind == "qa" else texts
    file = task.export_tflite(tmp_path / "small.tflite", quantize=quantize, **options)
    assert not operations(file.read_bytes())[1]
    assert file.stat().st_size < whole_size(kind, family)
    run = Interpreter(model_content=file.read_bytes()).get_signature_runner()
    differences = []
    packer = tflite.IdPacker(task.tokenizer, LENGTH)
    for i in range(len(WORDS)):
        row = packer(*([WORDS[i - k]] for k in range(len(task.feature_names))))
        found = run(**row)
        for name, value in _expected(task, row).items():
            real = value > -1e8
            away = np.abs(found[NAMES.get(name, name)] - value)[real]
            differences.append(away.max() / np.abs(value[real]).max())
    limit = {"fp16": 5e-3, "int8": 0.1, "int8-full": 0.2}[quantize]
    assert 0 < max(differences) < limit


@only_in("extended", "albert-embedder")
@only_in("full", "bert-classifier")
@pytest.mark.parametrize(
    ("family", "kind"),
    each_once(
        [
            ("bilstm", "classifier"),
            ("bert", "classifier"),
            ("albert", "embedder"),
            ("bert", "labels"),
            ("albert", "regressor"),
        ],
        lambda case: case[:1],
    ),
)
def test_texts_are_answered_as_by_the_task(family, kind, task_of, tmp_path):
    task = task_of(kind, family)
    file = task.export_tflite(tmp_path / "m.tflite")
    run = interpreter(file.read_bytes()).get_signature_runner()
    names = task.feature_names
    rows = {name: np.roll(np.array(WORDS, object), i) for i, name in enumerate(names)}
    if task.tokenizer.get_config().get("lstrip_tokens"):
        # These keep the white space before them, which takes a regular expression.
        rows = {
            name: np.array([t for t in texts if b"MASK" not in t], object)
            for name, texts in rows.items()
        }
        rows = {name: texts[: min(map(len, rows.values()))] for name, texts in rows.items()}
    together = task.answer({name: tf.constant(texts) for name, texts in rows.items()})
    count = len(next(iter(rows.values())))
    batches = [slice(0, count), *(slice(i, i + 1) for i in range(count))]
    for batch in batches:
        found = run(**{name: texts[batch] for name, texts in rows.items()})
        assert set(found) == set(together)
        for name, value in together.items():
            value = value.numpy()[batch]
            if value.dtype == object:
                assert found[name].tolist() == value.tolist()
            else:
                np.testing.assert_allclose(found[name], value, atol=2e-5, rtol=2e-5)


@pytest.mark.full
def test_texts_of_a_quantized_model(task_of, tmp_path):
    task = task_of("classifier", "bert")
    file = task.export_tflite(tmp_path / "m.tflite", quantize="int8", length=8)
    run = interpreter(file.read_bytes()).get_signature_runner()
    found = run(text=np.array([b"the film " * 300, b""], object))
    assert found["scores"].shape == (2, len(LABELS))
    np.testing.assert_allclose(found["scores"].sum(1), 1, atol=1e-5)


@pytest.mark.full
def test_texts_are_truncated_to_the_length(task_of, tmp_path):
    task = task_of("classifier", "bert")
    run = interpreter(
        task.export_tflite(tmp_path / "m.tflite", length=8).read_bytes()
    ).get_signature_runner()
    short, long = (run(text=np.array([b"the cast " * n], object)) for n in (3, 30))
    np.testing.assert_array_equal(short["scores"], long["scores"])


@pytest.mark.parametrize(
    ("kind", "family", "options", "message"),
    [
        ("classifier", "bert", dict(inputs="tokens"), "inputs must be text or ids, got 'tokens'"),
        ("classifier", "bert", dict(quantize="int4"), "quantize must be one of fp16, .*got 'int4'"),
        ("classifier", "bert", dict(length=49), "length must be from 1 to the task's 48, got 49"),
        ("classifier", "bert", dict(length=0), "length must be from 1 to the task's 48, got 0"),
        (
            "classifier",
            "bert",
            dict(calibration=["a"]),
            "is only for quantize='int8-full', got quantize=None",
        ),
        ("classifier", "bert", dict(quantize="int8-full"), "needs inputs='ids'"),
        (
            "classifier",
            "bert",
            dict(quantize="int8-full", inputs="ids"),
            "needs calibration, a few hundred",
        ),
        (
            "qa",
            "bert",
            dict(quantize="int8-full", inputs="ids", calibration=["a"]),
            r"must have 2 texts, \('question', 'context'\), got 1",
        ),
        (
            "classifier",
            "bilstm",
            dict(quantize="int8-full", inputs="ids", calibration=["a"]),
            "cannot run the loops of bilstm's recurrent layers",
        ),
        ("classifier", "roberta", {}, "no TFLite kernels for ByteBPETokenizer; with inputs='ids'"),
        ("tagger", "bert", {}, "The outputs of TokenTagger contain words of the text"),
        ("qa", "bert", {}, "The outputs of SpanQA contain words of the text"),
        ("choice", "bert", dict(inputs="ids"), "MultipleChoice takes a list of texts"),
    ],
)
def test_refused(kind, family, options, message, task_of, tmp_path):
    task = task_of(kind, family)
    with pytest.raises(ValueError, match=message):
        task.export_tflite(tmp_path / "m.tflite", **options)
    assert not list(tmp_path.iterdir())


def test_mixed_precision(tiny, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        task = bf.TextClassifier.from_pretrained(tiny)
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.raises(ValueError, match="in float32, this task in bfloat16: save it, and load"):
        task.export_tflite(tmp_path / "m.tflite")


@pytest.mark.full
def test_a_wrong_file_name_or_answer_leaves_nothing(tiny, tmp_path, monkeypatch):
    task = _task("classifier", "bert", tiny)
    with pytest.raises(ValueError, match=r"does not end in \.tflite"):
        task.export_tflite(tmp_path / "m.lite")
    task.export_tflite(tmp_path / "m.tflite", inputs="ids", length=8)
    before = (tmp_path / "m.tflite").read_bytes()
    converted = tflite._convert

    def wrong(graph, task, *more):
        given = [weight.numpy() for weight in task.head.weights]
        task.head.set_weights([weight + 0.01 for weight in given[:-1]] + [2 * given[-1]])
        content = converted(graph, task, *more)
        task.head.set_weights(given)
        return content

    monkeypatch.setattr(tflite, "_convert", wrong)
    with pytest.raises(ExportError, match="differs from the task's"):
        task.export_tflite(tmp_path / "m.tflite", inputs="ids", length=8)
    assert [file.name for file in tmp_path.iterdir()] == ["m.tflite"]
    assert (tmp_path / "m.tflite").read_bytes() == before


@pytest.mark.full
def test_answers_lost_to_quantizing_are_no_export(task_of, tmp_path):
    task = task_of("qa", "bert")
    texts = [("the cast", "a good film")] * 4
    with pytest.raises(ExportError, match=r"'int8-full' the output '\w+_logits' is unrelated"):
        task.export_tflite(
            tmp_path / "m.tflite", inputs="ids", length=9, quantize="int8-full", calibration=texts
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_operations_without_kernels_are_named(tiny, tmp_path):
    task = _task("classifier", "bert", tiny)
    answer = type(task).answer_ids
    task.answer_ids = lambda x: {"scores": tf.math.digamma(answer(task, x)["scores"])}
    with pytest.raises(ExportError, match="no kernels for Digamma"):
        task.export_tflite(tmp_path / "m.tflite", inputs="ids", length=8)


def _halve(task, texts):
    """Moves the bias so that about half of the texts get each label."""
    scores = np.array([row["scores"] for row in task.predict(texts)])
    bias = task.head.weights[-1]
    bias.assign_add([0, -np.median(np.log(scores[:, 1] / scores[:, 0]))])


@pytest.mark.full
def test_a_real_tokenizer(minilm, real_data, tmp_path):
    """Of a small model with MiniLM's vocabulary, the labels of all 872 dev sentences of SST-2."""
    tokenizer = load_tokenizer(minilm)
    backbone = small_backbone("bert", tokenizer, width=32)
    task = bf.TextClassifier(backbone, tokenizer, ["bad", "good"], pair=False, max_length=64)
    perturb(task.weights, 0.3)
    _halve(task, ["a good film", "the plot is thin", "it never finds its feet", "wonderful"])
    lines = real_data("glue/SST-2/dev.tsv").read_text("utf-8").splitlines()[1:]
    texts = [line.split("\t")[0] for line in lines]
    assert len(texts) == 872
    expected = task.predict(texts)
    assert 100 < sum(row["label"] == "good" for row in expected) < 772
    run = interpreter(task.export_tflite(tmp_path / "m.tflite").read_bytes()).get_signature_runner()
    found = [run(text=np.array([text.encode()], object))["label"][0].decode() for text in texts]
    assert found == [row["label"] for row in expected]
