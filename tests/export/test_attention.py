"""The signature that returns attention, in an export and on the server's page."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import analysis

TEXTS = ["a good film", "it is a very dull plot, isn't it?", ""]


@pytest.fixture(scope="module")
def pruned(tiny):
    """A layer has a head less than the other."""
    return analysis.prune(bf.TextClassifier.from_pretrained(tiny), {0: [1]})


def _is_attention(found, task):
    """For each text what it is alone, cut at the number of tokens."""
    for row, text in enumerate(TEXTS):
        maps = analysis.attention_maps(task, text)
        count = min(len(maps.tokens), 8)
        assert found["count"][row] == count
        tokens = [token.decode() for token in found["tokens"][row].numpy()]
        assert tokens == maps.tokens[:count] + [""] * (8 - count)
        for layer, expected in zip(found["attention"][row].numpy(), maps.layers, strict=True):
            heads = len(expected)
            rows = layer[:heads, :count, :count]
            np.testing.assert_allclose(rows, expected[:, :count, :count], atol=1e-5)
            assert not layer[heads:].any()
            assert not layer[:, count:].any()
            assert not layer[:, :, count:].any()


@pytest.mark.extended
def test_the_signature(pruned):
    answer = pruned.signatures(attention=8)["attention"].function
    _is_attention(answer({"text": tf.constant(TEXTS)}), pruned)


@pytest.mark.full
def test_an_export_returns_attention(pruned, tmp_path):
    served = pruned.export(tmp_path / "export", attention=8)
    signature = tf.saved_model.load(str(served)).signatures["attention"]
    _is_attention(signature(text=tf.constant(TEXTS)), pruned)


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt2", "deberta", "modernbert"])
def test_padding_does_not_matter(family, tiny):
    tokenizer = bf.load_tokenizer(tiny)
    backbone = bf.build(family, "tiny", num_layers=2, vocab_size=tokenizer.vocab_size)
    task = bf.TextClassifier(backbone, tokenizer, ["no", "yes"])
    answer = task.signatures(attention=16)["attention"].function
    together = answer({"text": tf.constant(TEXTS)})
    for row, text in enumerate(TEXTS[:2]):
        alone = answer({"text": tf.constant([text])})
        assert together["count"][row] == alone["count"][0] > 2
        np.testing.assert_array_equal(together["tokens"][row], alone["tokens"][0])
        np.testing.assert_allclose(together["attention"][row], alone["attention"][0], atol=1e-5)


def test_refused(tiny):
    task = bf.TextClassifier.from_pretrained(tiny)
    for tokens, message in ((0, "at least 1, got 0"), ("8", "an integer, got '8'")):
        with pytest.raises(ValueError, match=f"attention must be {message}"):
            task.signatures(attention=tokens)
    qa = bf.SpanQA(task.backbone, task.tokenizer, max_length=20, stride=4)
    with pytest.raises(ValueError, match="SpanQA are several rows"):
        qa.signatures(attention=8)
    bilstm = bf.build("bilstm", "tiny", vocab_size=task.tokenizer.vocab_size)
    with pytest.raises(ValueError, match="no attention"):
        bf.TextClassifier(bilstm, task.tokenizer, ["a", "b"], pair=False).signatures(attention=8)
