"""Losses of pretraining against the reference's classes, on perturbed weights."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.learner import Batch
from bertfam_tf.models import unpadding
from bertfam_tf.objectives import MaskedTokens, PairLabels, ReplacedTokens

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tools import reference  # noqa: E402

pytestmark = pytest.mark.live

SHAPE = (4, 9)
LENGTHS = np.array([9, 7, 4, 8])


def _reference(name, tmp_path, **config):
    """The reference's model for pretraining, perturbed and written to a directory."""
    torch.manual_seed(0)
    family = name.lower()
    settings = {**reference.SMALL[family], **config}
    made = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}ForPreTraining")(made).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(tmp_path)
    return model


def _batch(vocabulary):
    rng = np.random.default_rng(0)
    mask = (np.arange(SHAPE[1]) < LENGTHS[:, None]).astype("int32")
    ids = rng.integers(1, vocabulary, SHAPE).astype("int32") * mask
    segments = ((np.arange(SHAPE[1]) > 3) * mask).astype("int32")
    positions = np.array([[1, 4, 8], [2, 6, 0], [3, 0, 0], [0, 0, 0]], "int32")
    weights = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], "float32")
    targets = rng.integers(1, vocabulary, positions.shape).astype("int32")
    labels = np.full(SHAPE, -100)
    rows, columns = np.nonzero(weights)
    labels[rows, positions[rows, columns]] = targets[rows, columns]
    return ids, mask, segments, positions, weights, targets, labels


@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("name", ["Bert", "Albert"])
def test_masked_tokens_and_pairs(name, unpadded, tmp_path):
    """The loss, and the gradient of each weight."""
    model = _reference(name, tmp_path)
    ids, mask, segments, positions, weights, targets, labels = _batch(model.config.vocab_size)
    pair = np.array([0, 1, 1, 0])
    sentence = "next_sentence_label" if name == "Bert" else "sentence_order_label"
    found = model(
        input_ids=torch.tensor(ids).long(),
        attention_mask=torch.tensor(mask),
        token_type_ids=torch.tensor(segments).long(),
        labels=torch.tensor(labels),
        **{sentence: torch.tensor(pair)},
    )
    found.loss.backward()

    backbone = bf.load_backbone(tmp_path, dropout=0.0, attention_dropout=0.0)
    checkpoint = Checkpoint(tmp_path, name.lower())
    made = {kind: heads.build(backbone, kind) for kind in ("masked_lm", "pair")}
    for kind, head in made.items():
        checkpoint.fill_head(head, kind)
    batch = Batch(
        {"token_ids": ids, "padding_mask": mask, "segment_ids": segments},
        {"positions": positions, "token_ids": targets, "pair": pair.astype("int32")},
        weights,
    )
    with unpadding(unpadded), tf.GradientTape() as tape:
        outputs = backbone(batch.inputs)
        losses = {}
        for objective in (MaskedTokens(made["masked_lm"]), PairLabels(made["pair"])):
            losses |= objective.loss(outputs, objective.heads, batch)
        total = sum(s / n for s, n in losses.values())
    assert float(total) == pytest.approx(float(found.loss), rel=1e-5)
    table = backbone.parts["token_embedding"].embeddings
    gradient = tf.convert_to_tensor(tape.gradient(total, table.value))
    theirs = model.get_input_embeddings().weight.grad.numpy()
    np.testing.assert_allclose(gradient, theirs, atol=2e-4 * np.abs(theirs).max())
    print(f"{name}: {float(total):.6f}, the reference's {float(found.loss):.6f}")


def test_replaced_tokens(tmp_path):
    """The discriminator's loss, for tokens that were replaced by hand."""
    model = _reference("Electra", tmp_path)
    ids, mask, segments, *_ = _batch(model.config.vocab_size)
    originals = ids.copy()
    ids[0, 2], ids[1, 1], ids[3, 5] = 3, 4, 5
    replaced = (ids != originals).astype("int64")
    labels = np.where(mask > 0, replaced, -100)
    found = model(
        input_ids=torch.tensor(ids).long(),
        attention_mask=torch.tensor(mask),
        token_type_ids=torch.tensor(segments).long(),
        labels=torch.tensor(labels).float(),
    )
    backbone = bf.load_backbone(tmp_path, dropout=0.0, attention_dropout=0.0)
    head = heads.build(backbone, "rtd")
    Checkpoint(tmp_path, "electra").fill_head(head, "rtd")
    objective = ReplacedTokens(heads.build(backbone, "masked_lm"), head)
    given = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
    batch = Batch(
        {**given, "positions": np.zeros((4, 1), "int32"), "weights": np.ones((4, 1), "float32")},
        {"token_ids": np.ones((4, 1), "int32"), "originals": originals},
    )
    hidden = backbone(given)
    outputs = {"generator": hidden, "discriminator": hidden, "token_ids": ids}
    total, count = objective.loss(outputs, objective.heads, batch)["rtd"]
    assert float(total / count) == pytest.approx(float(found.loss), rel=1e-5)
