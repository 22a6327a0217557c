"""Heads of all families: parity with stored files, properties, and detection in checkpoints."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf import heads, registry
from bertfam_tf.checkpoints import Checkpoint, CheckpointError, convert, save_pretrained
from bertfam_tf.layers import activation
from tests import parity
from tests.seeding import seed
from tests.selection import WIRINGS, each_once, in_full
from tests.tokens import as_read

GOLDENS = Path(__file__).parent / "goldens"
FILES = sorted(GOLDENS.glob("*/heads/*/logits.npz"))
HEADS = [(family, head) for family in bf.families() for head in registry.get(family).heads]
# Some families share heads with others; one of each kind is enough.
KINDS = list({id(registry.get(f).heads[head]): (f, head) for f, head in reversed(HEADS)}.values())
WEIGHTS = "model.safetensors"


def _of(file):
    return file.parts[-4], file.parts[-2]


# `make test` runs one head of each name.
every_golden = pytest.mark.parametrize(
    "file", each_once(FILES, lambda file: _of(file)[1:]), ids=lambda file: "-".join(_of(file))
)
every_head = pytest.mark.parametrize(("family", "head"), each_once(HEADS, lambda head: head[1:]))
every_kind = pytest.mark.parametrize(("family", "head"), each_once(KINDS, lambda kind: kind[1:]))


def _build(family, head, num_labels=5, **overrides):
    seed(2)
    shape = dict(vocab_size=40, hidden_size=16, intermediate_size=64, max_positions=16)
    fields = registry.get(family).config.__dataclass_fields__
    shape |= {"embedding_size": 8} if "embedding_size" in fields else {}
    shape |= {"num_languages": 1} if "num_languages" in fields else {}
    shape |= {"num_layers": 1}
    given = {name: value for name, value in {**shape, **overrides}.items() if name in fields}
    backbone = bf.build(family, "tiny", **given)
    free = registry.get(family).heads[head].has_labels
    layer = heads.build(backbone, head, num_labels if free else None)
    for variable in layer.weights:
        variable.assign_add(np.random.default_rng(1).normal(0, 0.3, variable.shape))
    return backbone, layer


def _inputs(backbone, rows=3, length=7, padding=0):
    tokens = np.random.default_rng(0).integers(3, 40, (rows, length)).astype("int32")
    targets = np.eye(length, dtype="int32")[None, :2].repeat(rows, axis=0)
    inputs = {
        "token_ids": tokens,
        "padding_mask": np.ones_like(tokens),
        "target_mapping": targets,
    }
    padded = {k: np.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, padding)]) for k, v in inputs.items()}
    return {**padded, "token_ids": as_read(backbone, padded["token_ids"])}


# Parity ---------------------------------------------------------------------------------------


def test_every_head_has_a_golden():
    """Its own golden, or that of a family with the same head, where there is a reference."""
    compared = {_of(file) for file in FILES}
    same = [registry.get(family).heads[head] for family, head in compared]
    for family, head in HEADS:
        if registry.get(family).huggingface is None:
            continue
        assert (family, head) in compared or registry.get(family).heads[head] in same


@every_golden
def test_logits(file):
    with np.load(file) as expected:
        found = parity.head_differences(file.parent, *_of(file), dict(expected))
    assert found["logits"] <= parity.TOLERANCE


@pytest.mark.parametrize("head", in_full(["sequence", "masked_lm", "pair"], ["sequence"]))
def test_a_wrong_weight_is_noticed(head, tmp_path):
    """The comparison above fails if one weight of the head is wrong."""
    source = GOLDENS / "albert" / "heads" / head
    kind = registry.get("albert").heads[head]
    for name in kind.weights(head).values():
        shutil.copytree(source, tmp_path / name)
        tensors = load_file(source / WEIGHTS)
        tensors[name.removesuffix("|T")].flat[0] += 1e-3
        save_file(tensors, tmp_path / name / WEIGHTS)
        with np.load(source / "logits.npz") as expected:
            found = parity.head_differences(tmp_path / name, "albert", head, dict(expected))
        assert found["logits"] > parity.TOLERANCE, name


@pytest.mark.parametrize("family", in_full(sorted({_of(file)[0] for file in FILES}), WIRINGS))
def test_classifiers_from_pretrained(family, tmp_path):
    file = GOLDENS / family / "heads" / "sequence" / "logits.npz"
    shutil.copytree(file.parent, tmp_path / "in")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz01"]
    known = json.loads((tmp_path / "in" / "config.json").read_text())["vocab_size"]
    (tmp_path / "in" / "vocab.txt").write_text("\n".join(pieces[:known]) + "\n")
    config = tmp_path / "in" / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "BertTokenizer"}')
    language = {"xlm": 0}.get(family)
    task = bf.TextClassifier.from_pretrained(tmp_path / "in", language=language)
    assert task.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    with np.load(file) as expected:
        given = task.backbone.complete(parity.segments(task.backbone, expected)[0])
        logits = task({name: given[name] for name in task.backbone.token_inputs}, training=False)
        assert parity.relative(logits, expected["logits"]) <= parity.FLOAT32_TOLERANCE
    task.backbone.save(tmp_path / "backbone.keras")
    save_pretrained(task.backbone, tmp_path / "out", heads={"sequence": task.head})
    ours, theirs = (load_file(tmp_path / name / WEIGHTS) for name in ("in", "out"))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name], value, err_msg=name)


# Properties -----------------------------------------------------------------------------------


@every_head
def test_shapes_gradients_and_names(family, head):
    backbone, layer = _build(family, head)
    with tf.GradientTape() as tape:
        logits = layer(backbone(_inputs(backbone)), training=True)
        loss = tf.reduce_sum(logits**2)
    expected = {
        "sequence": (3, 5),
        "tokens": (3, 7, 5),
        "span": (3, 7, 2),
        "choice": (3,),
        "masked_lm": (3, 7, 40),
        "causal_lm": (3, 7, 40),
        "permutation_lm": (3, 2, 40),
        "pair": (3, 2),
        "rtd": (3, 7),
    }[head]
    assert tuple(logits.shape) == expected
    symbolic = layer(backbone.output)
    assert symbolic.shape == (None, *expected[1:]) or symbolic.shape[2:] == expected[2:]
    variables = layer.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        assert np.abs(gradient).max() > 0, variable.path
    record = registry.get(family)
    names = record.expand(record.heads[head].weights(head), backbone.config)
    assert sorted(v.path for v in layer.weights) == sorted(names)


@pytest.mark.full
@every_kind
def test_padding_changes_nothing(family, head):
    backbone, layer = _build(family, head)
    full, more = (layer(backbone(_inputs(backbone, padding=n))) for n in (0, 3))
    if more.ndim > 1 and layer.reads == "sequence_output":
        more = more[:, :7]
    np.testing.assert_allclose(more, full, atol=2e-5)


@pytest.mark.full
@every_kind
def test_dropout_rates_are_from_the_config(family, head):
    rates = dict(dropout=0.0, attention_dropout=0.0)
    fields = registry.get(family).config.__dataclass_fields__
    own = [name for name in fields if name.endswith("_dropout") and name not in rates]
    backbone, layer = _build(family, head, **rates, **dict.fromkeys(own, 0.0))
    outputs = backbone(_inputs(backbone))
    calm = layer(outputs, training=False)
    np.testing.assert_array_equal(layer(outputs, training=True), calm)
    backbone, layer = _build(family, head, dropout=0.5, **dict.fromkeys(own, 0.5))
    drops = any(isinstance(p, registry.DropoutSpec) for p in registry.get(family).heads[head].parts)
    outputs = backbone(_inputs(backbone))
    differ = np.abs(layer(outputs, training=True) - layer(outputs, training=False)).max() > 0
    assert differ == drops


def test_the_default_dropout_rate_is_the_encoders():
    assert bf.build("bert", "tiny", vocab_size=9).config.classifier_dropout is None
    _, layer = _build("bert", "sequence", dropout=0.3)
    assert layer.parts[0].rate == 0.3
    _, layer = _build("bert", "sequence", dropout=0.3, classifier_dropout=0)
    assert layer.parts[0].rate == 0
    with pytest.raises(
        ValueError, match=r"classifier_dropout must be of type float \| None, got 'a'"
    ):
        bf.build("bert", "tiny", classifier_dropout="a")


@every_kind
def test_logits_of_selected_positions(family, head):
    """Only masked positions need logits of the whole vocabulary."""
    backbone, layer = _build(family, head)
    outputs = backbone(_inputs(backbone))
    everything, x = layer(outputs).numpy(), layer.select(outputs)
    np.testing.assert_allclose(layer.logits(x), everything, atol=1e-6)
    positions = [(0,), (2,)] if x.shape.ndims == 2 else [(0, 1), (2, 0), (1, 1)]
    chosen = layer.logits(tf.gather_nd(x, positions))
    np.testing.assert_allclose(chosen, tf.gather_nd(everything, positions), atol=1e-5)
    if everything.shape[-1] == 40:
        targets = tf.constant([3] * len(positions))
        found = layer.logits(tf.gather_nd(x, positions), targets)
        expected = tf.nn.log_softmax(chosen)[:, 3]
        np.testing.assert_allclose(found, expected, atol=1e-5)


@every_head
def test_fields_of_heads_are_the_configs(family, head):
    record = registry.get(family)
    spec = record.heads[head]
    values = [value for part in spec.parts for value in vars(part).values()]
    fields = {value.name for value in values if isinstance(value, registry.Field)}
    assert fields <= set(record.config.__dataclass_fields__)
    assert all(getattr(part, "width", None) is not registry.LABELS for part in spec.parts[:-1])
    # A string instead of a Field would be interpreted as the name of an activation.
    words = {getattr(part, "activation", None) for part in spec.parts}
    assert all(
        word is None or isinstance(word, registry.Field) or activation(word) for word in words
    )


@pytest.mark.parametrize(("family", "head"), in_full(KINDS, [("bert", "pair"), ("xlnet", "span")]))
def test_half_precision_answers_in_float32(family, head):
    backbone, layer = _build(family, head, dtype="mixed_bfloat16")
    logits = layer(backbone(_inputs(backbone)))
    assert logits.dtype == tf.float32
    assert np.isfinite(logits).all()


def test_a_new_head_is_as_large_as_the_config_says():
    backbone = bf.build("bert", "tiny", initializer_range=0.05)
    layer = heads.build(backbone, "tokens", num_labels=1000)
    assert np.std(layer.trainable_variables[0]) == pytest.approx(0.05, rel=0.02)


def test_a_language_model_shares_the_token_embedding():
    backbone, layer = _build("roberta", "masked_lm")
    assert not any(v.shape == (40, 16) for v in layer.weights)
    inputs = backbone.complete(_inputs(backbone))
    outputs = backbone(inputs)
    before = layer(outputs)
    table = backbone.get_layer("token_embedding").embeddings
    table.assign(table * 2)
    bias = next(v for v in layer.weights if v.path.endswith("decoder/bias"))
    np.testing.assert_allclose(layer(outputs) - bias, 2 * (before - bias), rtol=1e-4, atol=1e-5)
    model = keras.Model(backbone.input, layer(backbone.output))
    before = model(inputs)
    table.assign(table * 2)
    assert np.abs(model(inputs) - before).max() > 1e-3
    weights = {id(v) for v in backbone.weights} | {id(v) for v in layer.weights}
    assert {id(v) for v in model.weights} <= weights


def test_errors():
    backbone = bf.build("bert", "tiny", vocab_size=9, pooler=False)
    with pytest.raises(ValueError, match=r"head of bert 'token'\. Did you mean 'tokens'"):
        heads.build(backbone, "token", 3)
    with pytest.raises(ValueError, match="bert backbone has no pooler, whose output the sequence"):
        heads.build(backbone, "sequence", 3)
    with pytest.raises(ValueError, match="tokens head of bert needs num_labels"):
        heads.build(backbone, "tokens")
    with pytest.raises(ValueError, match="span head of bert has a fixed width"):
        heads.build(backbone, "span", 3)


# Detecting heads in checkpoints --------------------------------------------------------------


@every_golden
def test_has_head(file):
    family, head = _of(file)
    checkpoint = Checkpoint(file.parent, family)
    found = {name for name in registry.get(family).heads if checkpoint.has_head(name)}
    assert head in found
    # ALBERT's pretraining class has both heads; XLNet's language model has both directions.
    both = {("albert", "pair"): {"masked_lm"}, ("xlnet", "causal_lm"): {"permutation_lm"}}
    both["xlnet", "permutation_lm"] = {"causal_lm"}
    assert found - {head} <= both.get((family, head), set())
    if head in ("sequence", "tokens"):
        assert checkpoint.head_labels(head) == ["LABEL_0", "LABEL_1", "LABEL_2"]


def _copy(source, target, config=None, tensors=None):
    shutil.copytree(source, target)
    values = json.loads((source / "config.json").read_text()) | (config or {})
    (target / "config.json").write_text(json.dumps(values))
    stored = load_file(source / WEIGHTS)
    save_file({**stored, **{k: v(stored) for k, v in (tensors or {}).items()}}, target / WEIGHTS)


def test_a_decoder_of_its_own_is_refused(tmp_path):
    source = GOLDENS / "bert" / "heads" / "masked_lm"
    name, embedding = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    _copy(source, tmp_path / "same", tensors={name: lambda t: t[embedding]})
    parity.load_head(tmp_path / "same", "bert", "masked_lm")
    _copy(source, tmp_path / "own", tensors={name: lambda t: t[embedding] + 1})
    with pytest.raises(CheckpointError, match=f"{name} differs from embeddings.word"):
        parity.load_head(tmp_path / "own", "bert", "masked_lm")
    with pytest.raises(
        CheckpointError,
        match="an output projection that is not tied to the token embedding is not supported",
    ):
        convert(tmp_path / "own", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_only_the_copies_of_tied_tensors_may_be_stored(tmp_path):
    source = GOLDENS / "bert" / "heads" / "masked_lm"
    shutil.copytree(source, tmp_path / "in")
    tensors = load_file(source / WEIGHTS)
    embedding = tensors.pop("bert.embeddings.word_embeddings.weight")
    bias = tensors.pop("cls.predictions.bias")
    copies = {"decoder.weight": embedding, "decoder.bias": bias}
    tensors |= {f"cls.predictions.{name}": value for name, value in copies.items()}
    save_file(tensors, tmp_path / "in" / WEIGHTS)
    _, head = parity.load_head(tmp_path / "in", "bert", "masked_lm")
    [stored_bias] = (w for w in head.weights if w.path.endswith("decoder/bias"))
    np.testing.assert_array_equal(stored_bias, bias)


@pytest.mark.parametrize(
    ("family", "head", "key", "value"),
    [
        ("xlm", "sequence", "summary_type", "last"),
        ("xlm", "sequence", "summary_use_proj", False),
        ("gpt2", "choice", "summary_activation", "tanh"),
    ],
)
def test_a_summary_of_another_kind_is_refused(family, head, key, value, tmp_path):
    _copy(GOLDENS / family / "heads" / head, tmp_path / "in", {key: value})
    bf.load_backbone(tmp_path / "in")
    with pytest.raises(CheckpointError, match=f"{key} = {value!r}, which the {head} head"):
        parity.load_head(tmp_path / "in", family, head)


def test_a_pooler_is_missing_only_where_the_head_does_without(tmp_path):
    assert not bf.load_backbone(GOLDENS / "roberta" / "heads" / "sequence").config.pooler
    assert not bf.load_backbone(GOLDENS / "bert" / "heads" / "tokens").config.pooler
    assert bf.load_backbone(GOLDENS / "roberta" / "heads" / "choice").config.pooler
    source = GOLDENS / "bert" / "heads" / "sequence"
    shutil.copytree(source, tmp_path / "in")
    kept = {k: v for k, v in load_file(source / WEIGHTS).items() if "pooler" not in k}
    save_file(kept, tmp_path / "in" / WEIGHTS)
    with pytest.raises(CheckpointError, match="loads with pooler=False"):
        bf.load_backbone(tmp_path / "in")
    with pytest.warns(UserWarning, match="The pooler is initialized at random"):
        backbone = bf.load_backbone(GOLDENS / "bert" / "heads" / "tokens", pooler=True)
    [kernel] = (w for w in backbone.weights if w.path.startswith("pooler/") and len(w.shape) > 1)
    assert 0.01 < np.std(kernel) < 0.04


@pytest.mark.full
@every_golden
def test_convert_keeps_the_head(file, tmp_path):
    convert(file.parent, tmp_path / "out", family=_of(file)[0])
    before, after = load_file(file.parent / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    # Of the two names of a tied table a file has either; the encoder's is written.
    table = "transformer.tokens_embed.weight"
    before = {table if n == "lm_head.weight" else n: value for n, value in before.items()}
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
