"""ONNX files: ONNX Runtime's answers are the task's."""

import importlib.util
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.export import ExportError, export_onnx, onnx
from bertfam_tf.models import unpadding
from tests.export.test_every_task import LABELS, TEXTS, TOKENIZERS, small_backbone
from tests.export.test_tflite import _task
from tests.selection import in_full
from tests.support.exports import perturb

INSTALLED = all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime")))
needs_onnx = pytest.mark.skipif(not INSTALLED, reason="needs bertfam_tf[onnx]")
PAIRS = [
    ("classifier", "bert"),
    ("tagger", "xlm"),
    ("qa", "distilbert"),
    ("regressor", "roberta"),
    ("choice", "bert"),
    ("labels", "electra"),
    ("embedder", "albert"),
    ("masked", "deberta"),
    ("classifier", "mobilebert"),
]


@needs_onnx
@pytest.mark.extended
@pytest.mark.parametrize(("kind", "family"), in_full(PAIRS, PAIRS[:3]))
def test_answers(kind, family, tiny, tmp_path):
    """ONNX Runtime gives the task's numbers for a batch of any size and length."""
    from onnxruntime import InferenceSession

    task = _task(kind, family, tiny)
    file = task.export(tmp_path / "m.onnx", format="onnx")
    assert file == tmp_path / "m.onnx"
    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    assert {"input_ids", "attention_mask"} >= set(names) - {"token_type_ids", "language_ids"}
    assert session.get_inputs()[0].shape[:2] in (["batch", "sequence"], ["batch", 2])
    if kind == "choice":
        features = {"text": TEXTS[:2], "choices": [list(TEXTS[:2]), list(TEXTS[1:3])]}
    else:
        features = dict.fromkeys(task.feature_names, TEXTS[:3])
    packed = task.encode({name: tf.constant(x) for name, x in features.items()})
    with unpadding(False):
        expected = task.answer_ids({name: packed[name] for name in task.packed_specs})
    feed = {onnx.INPUTS.get(n, n): packed[n].numpy().astype("int64") for n in task.packed_specs}
    outputs = [each.name for each in session.get_outputs()]
    answers = session.run(outputs, {name: feed[name] for name in names})
    assert set(outputs) == {n for n, x in expected.items() if x.dtype != tf.string}
    for name, answer in zip(outputs, answers, strict=True):
        np.testing.assert_allclose(answer, expected[name], rtol=1e-5, atol=2e-5)


@needs_onnx
@pytest.mark.extended
def test_the_command(tiny, tmp_path, capsys):
    """``bertfam export --onnx``; the labels are in the metadata, and transformers' names fit."""
    from onnxruntime import InferenceSession

    task = _task("classifier", "bert", tiny)
    task.save(tmp_path / "task")
    file = tmp_path / "m.onnx"
    assert main(["export", str(tmp_path / "task"), str(file), "--onnx", "--opset", "18"]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["labels"]) == LABELS
    assert json.loads(described["task"]) == "TextClassifier"
    # transformers' tokenizer, from the same task, feeds the file.
    transformers = pytest.importorskip("transformers")
    task.save_pretrained(tmp_path / "published")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "published")
    inputs = tokenizer(["a good film", "bad"], padding=True, return_tensors="np")
    feed = {each.name: inputs[each.name].astype("int64") for each in session.get_inputs()}
    [scores] = session.run(["scores"], feed)
    expected = [each["scores"] for each in task.predict(["a good film", "bad"])]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@needs_onnx
@pytest.mark.extended
def test_wrong_answers_get_no_name(tiny, tmp_path, monkeypatch):
    """A file whose answers differ from the task's is not written."""
    monkeypatch.setattr(onnx, "_erfc", onnx._log1p)
    task = _task("classifier", "bert", tiny)
    with pytest.raises(ExportError, match=r"The output 'scores' of 'ids' differs from the task's"):
        task.export(tmp_path / "m.onnx", format="onnx")
    assert not list(tmp_path.iterdir())


@needs_onnx
@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(["gpt2", "xlnet"], ["gpt2"]))
def test_what_is_not_converted(family, tiny, tmp_path):
    """A language model generates in a loop, and XLNet shifts its positions by reshaping."""
    tokenizer = TOKENIZERS["bert"](tiny)
    backbone, options = small_backbone(family, tokenizer), dict(max_length=24)
    if family == "gpt2":
        task = bf.CausalLM(backbone, tokenizer, **options)
    else:
        task = bf.TextClassifier(backbone, tokenizer, LABELS, pair=False, **options)
    perturb(task.weights, 0.3)
    with pytest.raises(ExportError, match="ONNX"):
        export_onnx(task, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_missing_packages(tiny, tmp_path, monkeypatch, capsys):
    """The error has the line that installs them."""
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    task = bf.TextClassifier.from_pretrained(tiny)
    with pytest.raises(ValueError, match=r"pip install 'bertfam_tf\[onnx\]'"):
        task.export(tmp_path / "m.onnx", format="onnx")
    task.save(tmp_path / "task")
    assert main(["export", str(tmp_path / "task"), str(tmp_path / "m.onnx"), "--onnx"]) == 2
    assert "pip install 'bertfam_tf[onnx]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("m.bin", [], "does not end in .onnx"),
        ("m.onnx", ["--opset", "9"], "opset must be from 17 to 18, got 9"),
        ("m.onnx", ["--tflite"], "--tflite and --onnx write different files"),
        ("m.onnx", ["--dtype", "int8"], "--dtype is for SavedModels"),
        ("m.onnx", ["--quantize", "fp16"], "--quantize is for --tflite"),
        ("m.onnx", ["--calibration", "x"], "--calibration is for SavedModels and --tflite"),
    ],
)
def test_invalid_options(file, options, message, tiny, tmp_path, capsys):
    bf.TextClassifier.from_pretrained(tiny).save(tmp_path / "task")
    command = ["export", str(tmp_path / "task"), str(tmp_path / file), "--onnx"]
    assert main([*command, *options]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_kept(tiny, tmp_path):
    (tmp_path / "m.onnx").write_text("a user's file")
    with pytest.raises(FileExistsError, match="is not an ONNX model"):
        export_onnx(bf.TextClassifier.from_pretrained(tiny), tmp_path / "m.onnx")
