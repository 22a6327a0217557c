"""Parity with the reference implementation itself, on perturbed weights."""

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.checkpoints import CheckpointError, huggingface
from tests import parity

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support import reference  # noqa: E402
from tests.support.reference_configs import SMALL, TINY, VARIANTS  # noqa: E402

pytestmark = pytest.mark.live
CASES = [(family, v) for family in reference.FAMILIES for v in VARIANTS[family]]


def test_every_family_is_compared():
    """Transformer-XL in its stored goldens: transformers 5 has it no more."""
    families = {name for name in parity.FAMILIES if registry.get(name).huggingface}
    assert set(VARIANTS) == families
    assert set(VARIANTS) - set(reference.FAMILIES) <= {"transformer_xl"}


@pytest.mark.parametrize("length", [7, 130])
@pytest.mark.parametrize("family", reference.FAMILIES)
def test_tiny(family, length, tmp_path):
    _compare(family, TINY[family], length, tmp_path)


@pytest.mark.parametrize("length", reference.LENGTHS)
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_variants(family, variant, length, tmp_path):
    settings = {**SMALL[family], **VARIANTS[family][variant]}
    _compare(family, settings, length, tmp_path)


def _compare(family, settings, length, directory):
    model = reference.build(family, **settings)
    reference.save(model, directory)
    given = reference.inputs(model.config, length, seed=1)
    expected = {**given, **reference.run(model, given)}
    parity.assert_equal(directory, family, expected)
    parity.assert_equal_in_float32(directory, family, expected)


@pytest.mark.parametrize("family", reference.FAMILIES)
def test_absent_keys_mean_what_they_mean_to_the_reference(family):
    full = reference.config(family).to_dict()
    assert _translated({}, family) == _translated(full, family)


def _translated(values, family):
    """Or the key that is refused."""
    try:
        return huggingface.translate(values, family)
    except CheckpointError as error:
        return str(error).replace(", by default,", ",")


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_configs_go_there_and_back(family, variant):
    settings = {**SMALL[family], **VARIANTS[family][variant]}
    theirs = reference.config(family, **settings)
    record, ours = huggingface.translate(theirs.to_dict(), family)
    written = huggingface.describe(record, ours)
    written.pop("model_type")
    again = reference.config(family, **written).to_dict()
    # More are those that earlier versions read.
    assert again | theirs.to_dict() == again


def test_real_weights(minilm, real_data):
    """MiniLM-L6 on 64 sentences of STS-B's dev split: every hidden state within 2e-5."""
    from transformers import AutoTokenizer, BertModel

    rows = real_data("glue/STS-B/original/sts-dev.tsv").read_text("utf-8").split("\n")
    texts = [row.split("\t")[5] for row in rows[:64]]
    encoded = AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = BertModel.from_pretrained(minilm)(**encoded, output_hidden_states=True)
    task = bf.TextEmbedder.from_pretrained(minilm)
    inputs = task.preprocess({"text": np.array(texts, object)})
    np.testing.assert_array_equal(inputs["token_ids"], encoded["input_ids"].numpy())
    ours = task.backbone(inputs)
    real = encoded["attention_mask"].numpy().astype(bool)
    largest = max(
        np.abs(a.numpy() - b.numpy())[real].max()
        for a, b in zip(ours["hidden_states"], theirs.hidden_states, strict=True)
    )
    print(f"largest difference of a hidden state: {largest:.1e}")
    assert largest < 2e-5
