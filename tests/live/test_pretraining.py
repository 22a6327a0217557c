"""Losses and steps of pretraining against the reference's classes, on perturbed weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads, registry
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.corpora import Masking, Permutation
from bertfam_tf.models import Backbone, unpadding
from bertfam_tf.objectives import (
    MaskedTokens,
    NextTokens,
    PairLabels,
    PermutedTokens,
    ReplacedTokens,
    replaced_tokens_network,
)
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.text import WordPieceTokenizer
from bertfam_tf.training.learner import Learner
from tests.corpora import test_masking
from tests.objectives import test_replaced

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.support import reference  # noqa: E402
from tests.support.reference_configs import SMALL  # noqa: E402

pytestmark = pytest.mark.live

SHAPE = (4, 9)
LENGTHS = np.array([9, 7, 4, 8])


def _reference(name, tmp_path, **config):
    """The reference's model for pretraining, perturbed and written to a directory."""
    torch.manual_seed(0)
    family = name.lower()
    settings = {**SMALL[family], **config}
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
            sums = objective.loss(outputs, objective.heads, batch)
            losses |= {name: sums[name] for name in objective.weights}
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


# One step of gradient descent, in float64 --------------------------------------------------------

RATE = 0.1


def _loaded(directory, family, *kinds):
    """Our backbone and heads with the weights of a directory, without dropout."""
    fields = registry.get(family).config.__dataclass_fields__
    quiet = {name: 0.0 for name in fields if "dropout" in name}
    checkpoint = Checkpoint(directory, family, **quiet)
    backbone = checkpoint.backbone(dtype="float64")
    made = [heads.build(backbone, kind) for kind in kinds]
    for kind, head in zip(kinds, made, strict=True):
        checkpoint.fill_head(head, kind)
    return backbone, *made


def _values(*layers):
    return {w.path: w.numpy() for layer in layers for w in layer.weights}


def _same_step(learner, batch, ours, theirs, loss):
    """Takes a step, and compares the loss before it and all weights after it.

    Args:
        learner: a model with the reference's weights before its step.
        batch: the reference's.
        ours, theirs: functions that return all weights of the model now, and the reference's after
            its step, by the same paths.
        loss: the reference's.
    """
    start = ours()
    learner.compile(keras.optimizers.SGD(RATE))
    data = tf.data.Dataset.from_tensors(tuple(each for each in batch if each is not None))
    [found] = learner.fit(data, shuffle=False, verbose=0).history["loss"]
    end, expected = ours(), theirs()
    assert end.keys() == expected.keys()
    largest = max(np.abs(end[path] - expected[path]).max() for path in expected)
    moved = max(np.abs(expected[path] - start[path]).max() for path in expected)
    print(
        f"loss {found:.6f}, the reference's {loss:.6f}; a step of up to {moved:.1e}, "
        f"largest difference {largest:.1e}"
    )
    assert found == pytest.approx(loss, abs=1e-5)
    assert largest <= 1e-5
    assert moved > 1e-2


def _stepped(losses, *models):
    """The reference's loss, after a step of its own."""
    parameters = dict.fromkeys(p for model in models for p in model.parameters())
    loss = losses()
    loss.backward()
    torch.optim.SGD(parameters, RATE).step()
    return float(loss.detach())


def _pretraining(name, model):
    ids, mask, segments, positions, weights, targets, labels = _batch(model.config.vocab_size)
    pair = np.array([0, 1, 1, 0])
    sentence = "next_sentence_label" if name == "bert" else "sentence_order_label"
    theirs = {"token_type_ids": segments, "labels": labels, sentence: pair}
    given = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
    targets = {"positions": positions, "token_ids": targets, "pair": pair.astype("int32")}
    return Batch(given, targets, weights), theirs


def _causal(_, model):
    ids, mask, *_ = _batch(model.config.vocab_size)
    given = {"token_ids": ids, "padding_mask": mask}
    return Batch(given), {"labels": np.where(mask > 0, ids, -100)}


def _permuted(_, model):
    tokenizer = WordPieceTokenizer(test_masking.PIECES)
    assert tokenizer.vocab_size <= model.config.vocab_size
    ids, mask = test_masking._rows(4, length=14)
    found = Permutation(Masking(tokenizer, 0.4))(ids, mask, test_masking._seeds(4))
    given = {
        "token_ids": ids, "padding_mask": mask, "segment_ids": mask * 0,
        "perm_mask": found.perm_mask.numpy(), "target_mapping": found.target_mapping.numpy(),
    }  # fmt: skip
    labels = np.where(found.weights > 0, found.targets, -100)
    theirs = {
        "token_type_ids": mask * 0, "labels": labels,
        **{name: given[name].astype("float64") for name in ("perm_mask", "target_mapping")},
    }  # fmt: skip
    return Batch(given, {"token_ids": found.targets}, found.weights), theirs


# For each family, the reference's class, our objectives by the heads that they need, and a batch.
STEPS = {
    "bert": ("BertForPreTraining", {"masked_lm": MaskedTokens, "pair": PairLabels}, _pretraining),
    "albert": (
        "AlbertForPreTraining",
        {"masked_lm": MaskedTokens, "pair": PairLabels},
        _pretraining,
    ),
    "gpt2": ("GPT2LMHeadModel", {"causal_lm": NextTokens}, _causal),
    "xlnet": ("XLNetLMHeadModel", {"permutation_lm": PermutedTokens}, _permuted),
}


def _reference_loss(model, batch, more):
    arguments = {
        "input_ids": batch.inputs["token_ids"], "attention_mask": batch.inputs["padding_mask"],
        **more,
    }  # fmt: skip
    arguments = {
        name: torch.tensor(x) if x.dtype.kind == "f" else torch.tensor(x).long()
        for name, x in arguments.items()
    }
    return model(**arguments).loss


@pytest.mark.parametrize("family", STEPS)
def test_losses_and_one_step(family, tmp_path):
    """MLM with NSP and with SOP, CLM, and PLM; the losses also with padding."""
    name, objectives, batch = STEPS[family]
    torch.manual_seed(0)
    model = getattr(transformers, name)(reference.config(family, **SMALL[family]))
    reference.perturbed(model)
    with reference._doubled(model):
        reference.save(model, tmp_path)
        backbone, *made = _loaded(tmp_path, family, *objectives)
        batch, more = batch(family, model)
        loss = _stepped(lambda: _reference_loss(model, batch, more), model)
        reference.save(model, tmp_path)
    built = [each(head) for each, head in zip(objectives.values(), made, strict=True)]
    outputs, padded = backbone(batch.inputs), {}
    for each in built:
        sums = each.loss(outputs, each.heads, batch)
        padded |= {name: sums[name] for name in each.weights}
    assert sum(float(x / n) for x, n in padded.values()) == pytest.approx(loss, abs=1e-5)
    inputs = {name: backbone.input[name] for name in batch.inputs}
    _same_step(
        Learner(inputs, backbone(inputs), built),
        batch,
        lambda: _values(backbone, *made),
        lambda: _values(*_loaded(tmp_path, family, *objectives)),
        loss,
    )


def _electra(directory):
    """Our generator, discriminator with the same embedding, and their heads."""
    generator, generator_head = _loaded(directory / "masked_lm", "electra", "masked_lm")
    alone, head = _loaded(directory / "rtd", "electra", "rtd")
    discriminator = Backbone(
        "electra",
        alone.config,
        parts=generator.parts.subset(*test_replaced.SHARED),
        dtype="float64",
        name="discriminator",
    )
    values = _values(alone)
    for weight in discriminator.weights:
        weight.assign(values[weight.path])
    return generator, generator_head, discriminator, head


def _electra_values(generator, generator_head, discriminator, head):
    named = {f"generator/{path}": x for path, x in _values(generator).items()}
    return named | _values(generator_head, discriminator, head)


def test_one_step_of_replaced_tokens(tmp_path):
    """RTD: a generator and a discriminator with one embedding, for the same samples."""
    torch.manual_seed(0)
    settings = {**SMALL["electra"], "hidden_size": 8}
    generator = transformers.ElectraForMaskedLM(reference.config("electra", **settings))
    settings = SMALL["electra"]
    discriminator = transformers.ElectraForPreTraining(reference.config("electra", **settings))
    discriminator.electra.embeddings = generator.electra.embeddings
    models = {"masked_lm": generator, "rtd": discriminator}
    for model in models.values():
        reference.perturbed(model)

    def save():
        for name, model in models.items():
            reference.save(model, tmp_path / name)

    ids, mask, segments, positions, weights, targets, labels = _batch(settings["vocab_size"])
    originals = np.where(labels >= 0, labels, ids).astype("int32")
    with reference._doubled(generator), reference._doubled(discriminator):
        save()
        ours = _electra(tmp_path)
        objective = ReplacedTokens(ours[1], ours[3])
        inputs, outputs = replaced_tokens_network(*ours[:3], seed=0)
        learner = Learner(inputs, outputs, [objective])
        given = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
        given |= {"positions": positions, "weights": weights}
        # Samples are drawn again in the step: the same, from the same state.
        state = learner.get_layer("sampled_tokens").draw.state
        drawn = state.numpy()
        sampled = learner(given)["token_ids"].numpy()
        state.assign(drawn)
        assert (sampled != ids).any()

        def losses():
            of_both = {"input_ids": ids, "labels": labels}, {
                "input_ids": sampled, "labels": (sampled != originals).astype("float64"),
            }  # fmt: skip
            first, second = (
                _reference_loss(model, Batch(given), {"token_type_ids": segments, **more})
                for model, more in zip(models.values(), of_both, strict=True)
            )
            return first + 50 * second

        loss = _stepped(losses, *models.values())
        save()
    _same_step(
        learner,
        Batch(given, {"token_ids": targets, "originals": originals}),
        lambda: _electra_values(*ours),
        lambda: _electra_values(*_electra(tmp_path)),
        loss,
    )
