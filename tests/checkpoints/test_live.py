"""transformers loads written checkpoints: no missing or unexpected tensors, equal outputs."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError, convert
from tests.checkpoints.test_save import CHECKPOINTS, FIXTURES, HEADS, _family, _name
from tests.parity import relative

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.support import reference  # noqa: E402

pytestmark = pytest.mark.live


def _of_theirs(directories):
    """The directories of families in the installed transformers."""
    return [directory for directory in directories if _family(directory) in reference.FAMILIES]


def _load(directory: Path):
    model, report = transformers.AutoModel.from_pretrained(directory, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def _outputs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens), output_hidden_states=True)


@pytest.mark.parametrize("directory", _of_theirs(CHECKPOINTS), ids=_name)
def test_transformers_computes_the_same_before_and_after(directory, tmp_path):
    bf.save_pretrained(bf.load_backbone(directory, _family(directory)), tmp_path)
    with np.load(directory / "length_7.npz") as expected:
        tokens = expected["token_ids"].astype("i8")
    before, after = (_outputs(_load(path), tokens) for path in (directory, tmp_path))
    assert len(before.hidden_states) > 1
    for one, other in zip(before.hidden_states, after.hidden_states, strict=True):
        assert torch.equal(one, other)
    if before.get("pooler_output") is not None:
        assert torch.equal(before.pooler_output, after.pooler_output)


def _with(output):
    """Names of the fixtures of which this output is expected."""
    found = []
    for file in sorted(FIXTURES.glob("*/expected.npz")):
        with np.load(file) as expected:
            found += [file.parent.name] if output in expected else []
    return found


def _inputs_of(expected):
    return {
        "input_ids": torch.tensor(expected["token_ids"]).long(),
        "attention_mask": torch.tensor(expected["padding_mask"]).long(),
        "token_type_ids": torch.tensor(expected["segment_ids"]).long(),
    }


@pytest.mark.parametrize("name", _with("pooled_output"))
def test_a_converted_checkpoint_computes_what_its_library_did(name, tmp_path):
    convert(FIXTURES / name, tmp_path / "out")
    model = _load(tmp_path / "out")
    with np.load(FIXTURES / name / "expected.npz") as expected, torch.no_grad():
        found = model(**_inputs_of(expected))
        real = expected["padding_mask"][..., None]
        sequence = expected["sequence_output"] * real
        assert relative(found.last_hidden_state.numpy() * real, sequence) < 1e-5
        assert relative(found.pooler_output.numpy(), expected["pooled_output"]) < 1e-5


@pytest.mark.parametrize("name", _with("logits"))
def test_a_converted_head_computes_what_its_library_did(name, tmp_path):
    if "masked_lm" in name:
        with pytest.raises(CheckpointError, match="cannot represent lm_activation"):
            convert(FIXTURES / name, tmp_path / "out")
        return
    convert(FIXTURES / name, tmp_path / "out")
    kind = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, kind).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    # A pooler that the class does not read is converted too.
    report["unexpected_keys"] = {n for n in report["unexpected_keys"] if "pooler" not in n}
    assert not any(report.values()), report
    with np.load(FIXTURES / name / "expected.npz") as expected, torch.no_grad():
        found = model.eval()(**_inputs_of(expected))
        logits = getattr(found, "logits", None)
        if logits is None:
            logits = torch.stack([found.start_logits, found.end_logits], dim=-1)
        real = expected["padding_mask"][..., None] if expected["logits"].ndim == 3 else 1
        assert relative(logits.numpy() * real, expected["logits"] * real) < 1e-5


@pytest.mark.parametrize("directory", _of_theirs(HEADS), ids=_name)
def test_the_class_that_is_named_loads_a_head_whole(directory, tmp_path):
    convert(directory, tmp_path / "out", family=_family(directory))
    name = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, name).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values()), report
    before = type(model).from_pretrained(directory)
    for one, other in zip(before.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_converted_classifier_and_its_tokenizer(tiny, tmp_path):
    convert(tiny, tmp_path / "out")
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values()), report
    assert model.config.id2label == {0: "negative", 1: "neutral", 2: "positive"}
    texts = ["A good film", "it is bad"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = model.eval()(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    answers = bf.TextClassifier.from_pretrained(tiny).predict(texts)
    scores = np.array([answer["scores"] for answer in answers])
    assert relative(scores, logits.softmax(-1).numpy()) < 1e-5
