"""Loading: published variations load, damage is reported, nothing is loaded partially."""

import json
from unittest import mock

import keras
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf.checkpoints import Checkpoint, CheckpointError, fill, safetensors
from tests.selection import in_full

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def _change_tensors(directory, change):
    tensors = load_file(directory / WEIGHTS)
    save_file(change(tensors) or tensors, directory / WEIGHTS)


def _change_config(directory, **values):
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def _shard(directory, shards=3, folder=""):
    tensors = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    (directory / folder).mkdir(exist_ok=True)
    names = sorted(tensors)
    index = {n: f"{folder}model-{i % shards + 1:05}.safetensors" for i, n in enumerate(names)}
    for shard in set(index.values()):
        save_file({n: tensors[n] for n in names if index[n] == shard}, directory / shard)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def _weights(backbone):
    return {variable.path: variable.numpy() for variable in backbone.weights}


@pytest.fixture(scope="module")
def expected(tiny):
    return _weights(bf.load_backbone(tiny))


def _same(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        assert found[path].dtype == np.float32
        np.testing.assert_allclose(found[path], value, err_msg=path, **tolerance)


# Valid files -----------------------------------------------------------------------------------


def _without_prefix(tensors):
    return {name.removeprefix("bert."): value for name, value in tensors.items()}


def _old_norms(tensors):
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {
        name.replace(*next((i for i in names.items() if name.endswith(i[0])), ("", ""))): value
        for name, value in tensors.items()
    }


def _with_buffers_and_heads(tensors):
    tensors["bert.embeddings.position_ids"] = np.arange(24)[None]
    tensors["cls.predictions.bias"] = np.zeros(64, np.float32)


def _wrapped(*prefixes):
    """Wrapped by DistributedDataParallel and torch.compile."""
    return lambda tensors: {f"{''.join(prefixes)}{name}": x for name, x in tensors.items()}


@pytest.mark.parametrize(
    "change",
    [
        *(_without_prefix, _old_norms, _with_buffers_and_heads),
        *(_wrapped("module."), _wrapped("_orig_mod."), _wrapped("_orig_mod.", "module.")),
        _wrapped("module.", "_orig_mod."),
    ],
)
def test_published_variations(tiny_copy, expected, change):
    before = set(load_file(tiny_copy / WEIGHTS))
    _change_tensors(tiny_copy, change)
    assert set(load_file(tiny_copy / WEIGHTS)) != before
    _same(_weights(bf.load_backbone(tiny_copy)), expected, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(ml_dtypes.bfloat16, 8e-3), (np.float16, 1e-3), (np.float64, 0)]
)
def test_other_precisions_load_as_float32(tiny_copy, expected, dtype, tolerance):
    _change_tensors(tiny_copy, lambda t: {name: value.astype(dtype) for name, value in t.items()})
    _same(_weights(bf.load_backbone(tiny_copy)), expected, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("folder", ["", "shards/"])
def test_shards(tiny_copy, expected, folder):
    _shard(tiny_copy, folder=folder)
    _same(_weights(bf.load_backbone(tiny_copy)), expected, rtol=0)


def test_overrides(tiny):
    backbone = bf.load_backbone(tiny, dropout=0.0, norm_epsilon=1e-5)
    assert (backbone.config.dropout, backbone.config.norm_epsilon) == (0.0, 1e-5)
    with pytest.raises(ValueError, match="Unknown BertConfig field 'droput'"):
        bf.load_backbone(tiny, droput=0.0)
    with pytest.raises(ValueError, match=r"BertConfig\.dropout must be of type float, got 'no'"):
        bf.load_backbone(tiny, dropout="no")
    with pytest.raises(ValueError, match="Unknown BertConfig field 'max_len'") as caught:
        bf.TextClassifier.from_pretrained(tiny, max_len=3)
    assert caught.value.__notes__ == ["TextClassifier has an option 'max_length'."]


def test_no_pooler(tiny_copy):
    drop = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    _change_tensors(tiny_copy, lambda t: {n: v for n, v in t.items() if n not in drop})
    with pytest.raises(CheckpointError, match=r"(?s)pooler\.dense\.bias.*loads with pooler=False"):
        bf.load_backbone(tiny_copy)
    assert "pooled_output" not in bf.load_backbone(tiny_copy, pooler=False).output


def test_an_unknown_config_key_is_logged(tiny_copy, caplog):
    _change_config(tiny_copy, rotary_base=10000, classifier_dropout=0.5)
    bf.load_backbone(tiny_copy)
    assert [record.getMessage() for record in caplog.records] == [
        "config.json: the key 'rotary_base' is not known and has no effect."
    ]


# Invalid files --------------------------------------------------------------------------------


def _cut(directory):
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[: len(content) // 2])


def _adapter(directory):
    config = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    (directory / WEIGHTS).rename(directory / "adapter_model.safetensors")
    (directory / WEIGHTS).touch()


def _remove_shard(directory):
    (directory / _shard(directory)[QUERY]).unlink()


def _name_absent_tensors(directory):
    index = _shard(directory)
    index["bert.absent"] = index[QUERY]
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))


def _name_long_shard(directory):
    index = _shard(directory)
    index[QUERY] = 300 * "x"
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))


def _name_shard_outside(directory):
    index = _shard(directory)
    shard = index[QUERY]
    (directory / shard).rename(directory.parent / shard)
    index = {name: f"../{file}" if file == shard else file for name, file in index.items()}
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))


def _damage_index(directory):
    _shard(directory)
    (directory / INDEX).write_text('{"weight_map": ["a"]}')


def _tensors(change):
    return lambda directory: _change_tensors(directory, change)


def _config(**values):
    return lambda directory: _change_config(directory, **values)


def _poison(value):
    def change(tensors):
        tensors[QUERY][3, 4] = value

    return change


DAMAGES = {
    "no config": (lambda d: (d / "config.json").unlink(), r"No config\.json in .*checkpoint"),
    "no weights": (lambda d: (d / WEIGHTS).unlink(), r"No weights in .*expected model\.safe"),
    "adapter": (
        lambda d: (_adapter(d), (d / "config.json").unlink()),
        "only an adapter of PEFT .*'org/base'.* merge_and_unload",
    ),
    "adapter with a config": (
        lambda d: (_adapter(d), (d / WEIGHTS).unlink()),
        "only an adapter of PEFT .*'org/base'.* merge_and_unload",
    ),
    "some tensors with a prefix": (
        _tensors(lambda t: {f"module.{n}" if n == QUERY else n: x for n, x in t.items()}),
        f"Unexpected tensors: module.{QUERY}",
    ),
    "config is text": (lambda d: (d / "config.json").write_text("{"), r"config\.json is not JSON"),
    "config is a list": (
        lambda d: (d / "config.json").write_text("[]"),
        "found a list, expected a JSON object",
    ),
    "config is binary": (
        lambda d: (d / "config.json").write_bytes(b"\xff\xfe"),
        r"config\.json is not JSON",
    ),
    "no type": (lambda d: (d / "config.json").write_text("{}"), "no 'model_type'"),
    "other type": (
        _config(model_type="t5"),
        "config.json: no family has the model type 't5'. .*bert",
    ),
    "list as type": (_config(model_type=["bert"]), "config.json: no family has the model type"),
    "relative positions": (
        _config(position_embedding_type="relative_key"),
        "position_embedding_type = 'relative_key', which bert does not support; .*'absolute'",
    ),
    "decoder": (_config(is_decoder=True), "is_decoder = True, which bert does not support"),
    "activation": (_config(hidden_act="geglu"), "Unknown activation 'geglu'. Did you mean 'gelu'"),
    "text for a number": (_config(hidden_size="32"), "hidden_size must be of type int, got '32'"),
    "null for a number": (_config(pad_token_id=None), "pad_id must be of type int, got None"),
    "heads that do not divide": (_config(num_attention_heads=5), "config of .*checkpoint"),
    "cut file": (_cut, r"model\.safetensors cannot be read as safetensors; .*truncated"),
    "empty file": (lambda d: (d / WEIGHTS).write_bytes(b""), "cannot be read as safetensors"),
    "missing shard": (_remove_shard, r"names model-0000\d\.safetensors, which is missing"),
    "index names too much": (_name_absent_tensors, "shards do not contain: bert.absent"),
    "name of a shard that is too long": (_name_long_shard, "names x{300}, which is missing"),
    "shard outside": (_name_shard_outside, r"names \.\./model-.*, which is outside of the checkp"),
    "index of another kind": (_damage_index, "is not an index of shards"),
    "tensor left over": (
        _tensors(lambda t: t.update({"bert.adapter.weight": np.ones(1, np.float32)})),
        "Unexpected tensors: bert.adapter.weight",
    ),
    "tensor missing": (
        _tensors(lambda t: {n: v for n, v in t.items() if n != QUERY}),
        "Missing tensors: encoder.layer.1.attention.self.query.weight",
    ),
    "more layers in the config": (_config(num_hidden_layers=4), "Missing tensors: .* and 4 more"),
    "fewer layers in the config": (
        _config(num_hidden_layers=2),
        "Unexpected tensors: .* and 4 more",
    ),
    "wrong shape": (
        _tensors(lambda t: t.update({QUERY: np.ones((16, 32), np.float32)})),
        rf"Wrong shapes: {QUERY} \(32, 16\), expected \(32, 32\)",
    ),
    "another vocabulary": (_config(vocab_size=65), r"\(64, 32\), expected \(65, 32\)"),
    "NaN": (_tensors(_poison(np.nan)), f"{QUERY} contains NaN or infinity"),
    "infinity": (_tensors(_poison(-np.inf)), f"{QUERY} contains NaN or infinity"),
    "quantized": (
        _tensors(lambda t: t.update({QUERY: np.ones((32, 32), np.int8)})),
        f"Wrong types: {QUERY} I8; expected one of F64, F32",
    ),
    "with and without prefix": (
        _tensors(lambda t: t.update({QUERY.removeprefix("bert."): t[QUERY]})),
        "contains the same tensor twice: .*query.weight, .*query.weight",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(tiny_copy, damage):
    change, error = DAMAGES[damage]
    change(tiny_copy)
    with pytest.raises(CheckpointError, match=f"(?s){error}"):
        bf.load_backbone(tiny_copy)


@pytest.mark.parametrize("value", [np.nan, "shape", "missing"])
def test_a_refused_load_changes_no_variable(tmp_path, value):
    variables = [keras.Variable(np.zeros((2, 3)), name=name) for name in "abc"]
    tensors = {name: np.ones((2, 3), np.float32) for name in "abc"}
    if value == "missing":
        del tensors["c"]
    else:
        tensors["c"] = np.full((2, 2) if value == "shape" else (2, 3), 1.0, np.float32)
        if value != "shape":
            tensors["c"][1, 2] = value
    save_file(tensors, tmp_path / WEIGHTS)
    sources = {name: name for name in "abc"}
    with pytest.raises(CheckpointError):
        fill(variables, safetensors.read(tmp_path), sources, (), "test")
    assert not any(variable.numpy().any() for variable in variables)


def test_a_variable_that_no_table_names_is_an_error(tmp_path):
    save_file({"a": np.ones(1, np.float32)}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="the family defines no names for b"):
        fill([keras.Variable([0.0], name="b")], safetensors.read(tmp_path), {"a": "a"}, (), "test")


# Heads ----------------------------------------------------------------------------------------


def _head(task):
    return task.head.parts[-1].kernel.numpy()


def test_the_stored_head_is_used_for_its_labels(tiny, recwarn):
    stored = load_file(tiny / WEIGHTS)["classifier.weight"].T
    for labels in (None, ["negative", "neutral", "positive"]):
        np.testing.assert_array_equal(
            _head(bf.TextClassifier.from_pretrained(tiny, labels)), stored
        )
    assert not recwarn.list


@pytest.mark.parametrize("labels", [["positive", "neutral", "good"], ["negative", "positive"]])
def test_other_labels_start_at_random_and_say_so(tiny, labels):
    stored = load_file(tiny / WEIGHTS)["classifier.weight"].T
    with pytest.warns(UserWarning, match="initialized at random.* negative, neutral, positive"):
        task = bf.TextClassifier.from_pretrained(tiny, labels)
    assert task.labels == labels
    assert not np.isin(stored, _head(task)).any()


def test_a_checkpoint_without_head(tiny_copy):
    drop = {"classifier.weight", "classifier.bias"}
    _change_tensors(tiny_copy, lambda t: {n: v for n, v in t.items() if n not in drop})
    with pytest.raises(ValueError, match="has no sequence head; pass labels"):
        bf.TextClassifier.from_pretrained(tiny_copy)
    with pytest.warns(UserWarning, match="initialized at random"):
        assert bf.TextClassifier.from_pretrained(tiny_copy, ["a", "b"]).labels == ["a", "b"]


def test_a_head_of_one_output_is_no_classifier(tiny_copy):
    _change_tensors(
        tiny_copy, lambda t: {n: v[:1] if "classifier" in n else v for n, v in t.items()}
    )
    with pytest.raises(ValueError, match=r"has one output, .* use TextRegressor or Reranker"):
        bf.TextClassifier.from_pretrained(tiny_copy)
    with pytest.warns(UserWarning, match="initialized at random"):
        assert bf.TextClassifier.from_pretrained(tiny_copy, ["a", "b"]).labels == ["a", "b"]


@pytest.mark.parametrize("names", [None, {"0": "a", "1": "b"}])
def test_a_head_without_a_name_for_each_label(tiny_copy, names):
    _change_config(tiny_copy, id2label=names)
    task = bf.TextClassifier.from_pretrained(tiny_copy)
    assert task.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_labels_name_the_outputs_that_have_default_names(tiny_copy, recwarn):
    """transformers writes them for more than two labels."""
    _change_config(tiny_copy, id2label={str(i): f"LABEL_{i}" for i in range(3)})
    head = _head(bf.TextClassifier.from_pretrained(tiny_copy))
    task = bf.TextClassifier.from_pretrained(tiny_copy, ["a", "b", "c"])
    assert task.labels == ["a", "b", "c"]
    np.testing.assert_array_equal(_head(task), head)
    nli = bf.ZeroShotClassifier.from_pretrained(
        tiny_copy, ["x", "y"], ["contradiction", "neutral", "entailment"]
    )
    np.testing.assert_array_equal(_head(nli), head)
    assert not recwarn


def test_labels_are_in_the_order_of_their_numbers(tiny_copy):
    names = {str(i): f"l{i}" for i in reversed(range(12))}
    _change_config(tiny_copy, id2label=names)
    assert Checkpoint(tiny_copy).labels == [f"l{i}" for i in range(12)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_config(id2label={"a": "b"}), "the keys of id2label are not numbers"),
        (
            _tensors(lambda t: {n: v for n, v in t.items() if n != "classifier.bias"}),
            "Missing tensors: classifier.bias",
        ),
        (
            _tensors(lambda t: {n: v for n, v in t.items() if n != "classifier.weight"}),
            "has a sequence head without classifier.weight",
        ),
        (
            _tensors(lambda t: t.update({"classifier.weight": np.ones((3, 31), np.float32)})),
            r"Wrong shapes: classifier.weight \(31, 3\), expected \(32, 3\)",
        ),
    ],
)
def test_damaged_heads(tiny_copy, change, error):
    change(tiny_copy)
    with pytest.raises(CheckpointError, match=error):
        bf.TextClassifier.from_pretrained(tiny_copy)


@pytest.mark.parametrize("labels", [[], ["a", "a"], ["a", 1]], ids=["none", "same", "int"])
def test_labels_that_are_none(tiny, labels):
    with pytest.raises(ValueError, match="labels must be at least two distinct strings"):
        bf.TextClassifier.from_pretrained(tiny, labels)


def test_tokenizer_and_length_have_to_fit(tiny_copy):
    with pytest.raises(ValueError, match="max_length 25 exceeds the model's 24 positions"):
        bf.TextClassifier.from_pretrained(tiny_copy, max_length=25)
    with (tiny_copy / "vocab.txt").open("a") as file:
        file.write("surplus\n")
    with pytest.raises(ValueError, match=r"65 tokens, the model only 64 .* same checkpoint"):
        bf.TextClassifier.from_pretrained(tiny_copy)
    (tiny_copy / "vocab.txt").unlink()
    with pytest.raises(CheckpointError, match=r"neither vocab\.txt nor tokenizer\.json"):
        bf.TextClassifier.from_pretrained(tiny_copy)
    with pytest.raises(CheckpointError, match=r"neither vocab\.txt nor tokenizer\.json"):
        bf.load_tokenizer(tiny_copy)


@pytest.mark.extended
def test_weights_that_are_read_are_not_drawn_at_random(tiny, tmp_path):
    truncated = keras.initializers.TruncatedNormal
    with mock.patch.object(
        truncated, "__call__", autospec=True, side_effect=truncated.__call__
    ) as draw:
        bf.load_backbone(tiny)
        task = bf.TextClassifier.from_pretrained(tiny, labels=["yes", "no"])
        task.save(tmp_path / "saved")
        bf.load(tmp_path / "saved")
        assert draw.call_count == 0
        bf.build("bert", "tiny", num_layers=1)
        assert draw.call_count > 5
    # A head that the checkpoint does not have.
    assert np.std(task.head.weights[0]) > 0


def _without_pooler(family, tiny, directory):
    """A published masked language model, which has no pooler."""
    tokenizer = bf.load_tokenizer(tiny)
    backbone = bf.build(family, "tiny", vocab_size=tokenizer.vocab_size, pooler=False)
    bf.MaskedLM(backbone, tokenizer).save_pretrained(directory)
    return backbone


@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(["bert", "albert", "mobilebert", "roberta"], ["bert"]))
def test_a_checkpoint_without_a_pooler_becomes_any_task(family, tiny, tmp_path):
    """As in transformers: pooler and head are new, and a visible warning says so."""
    stored = _weights(_without_pooler(family, tiny, tmp_path / "model"))
    cls, options = bf.TextClassifier, {"labels": ["no", "yes"]}
    if family == "roberta":  # whose classifier reads the first token
        cls, options = bf.MultipleChoice, {}
    with pytest.warns(UserWarning, match="The pooler and the"):
        tasks = [cls.from_pretrained(tmp_path / "model", **options) for _ in range(2)]
    weights = [_weights(task.backbone) for task in tasks]
    for path, value in weights[0].items():
        if path.startswith("pooler/") and path.endswith("kernel"):
            assert 0.01 < np.std(value) < 0.04
            assert not np.array_equal(value, weights[1][path])
        elif not path.startswith("pooler/"):
            np.testing.assert_array_equal(value, stored[path], err_msg=path)
    choices = {"text": ["a"], "choices": [["b", "c", "d", "e"]]}
    assert len(tasks[0].predict(choices if family == "roberta" else ["a text"])) == 1


def test_encoders_without_a_pooler(tiny_copy, tmp_path):
    """Tasks that read no pooler need none; ``pooler=True`` adds one, as transformers does."""
    drop = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    _change_tensors(
        tiny_copy,
        lambda t: {n: v for n, v in t.items() if n not in drop and "classifier" not in n},
    )
    with pytest.warns(UserWarning, match="The tokens head is initialized at random"):
        tagger = bf.TokenTagger.from_pretrained(tiny_copy, tags=["O", "B-X"])
    assert not tagger.backbone.config.pooler
    tagger.save(tmp_path / "ours")
    for path in (tiny_copy, tmp_path / "ours"):
        with pytest.warns(UserWarning, match="The pooler is initialized at random"):
            backbone = bf.load_backbone(path, pooler=True)
        bf.TextClassifier(backbone, tagger.tokenizer, ["no", "yes"])
        [kernel] = (w for w in backbone.weights if w.path == "pooler/dense/kernel")
        assert 0.01 < np.std(kernel) < 0.04
    with pytest.warns(UserWarning, match="The pooler and the sequence head are initialized"):
        task = bf.TextClassifier.from_pretrained(tmp_path / "ours", labels=["no", "yes"])
    np.testing.assert_array_equal(
        task.backbone.parts["token_embedding"].embeddings,
        tagger.backbone.parts["token_embedding"].embeddings,
    )
    with pytest.raises(ValueError, match=r"no pooler.*load_backbone\(path, pooler=True\) has one"):
        bf.TextClassifier(tagger.backbone, tagger.tokenizer, ["no", "yes"])


@pytest.mark.extended
def test_a_tagger_of_ours_becomes_a_classifier(tiny, tmp_path):
    tagger = bf.TokenTagger.from_pretrained(tiny, tags=["O", "B-X"])
    tagger.save_pretrained(tmp_path / "tagger")
    classifier = bf.TextClassifier.from_pretrained(tmp_path / "tagger", labels=["no", "yes"])
    assert classifier.predict(["a text"])[0]["label"] in ("no", "yes")


def test_a_new_head_is_a_visible_warning(tiny):
    with pytest.warns(UserWarning, match="is for the labels negative, neutral, positive"):
        bf.TextClassifier.from_pretrained(tiny, labels=["no", "yes"])


@pytest.mark.extended
def test_labels_in_another_order_keep_the_trained_head(tiny, tmp_path, recwarn):
    task = bf.TextClassifier.from_pretrained(tiny, temperature=2.0)
    task.save(tmp_path / "task")
    texts = ["a fine film", "dull"]
    expected = [row["scores"] for row in task.predict(texts)]
    order = [2, 0, 1]
    labels = [task.labels[i] for i in order]
    for path in (tiny, tmp_path / "task"):
        other = bf.TextClassifier.from_pretrained(path, labels=labels, temperature=2.0)
        scores = np.stack([row["scores"] for row in other.predict(texts)])
        np.testing.assert_allclose(scores, np.stack(expected)[:, order], rtol=1e-5)
    assert bf.TextClassifier.from_pretrained(path, labels=labels).temperature == 2.0
    assert not [each for each in recwarn.list if "initialized" in str(each.message)]


def test_labels_of_a_saved_task_that_are_no_strings(tiny, tmp_path):
    bf.TextClassifier.from_pretrained(tiny).save(tmp_path / "task")
    with pytest.raises(ValueError, match=r"two distinct strings, got \['positive', 1\]"):
        bf.TextClassifier.from_pretrained(tmp_path / "task", labels=["positive", 1])
    file = tmp_path / "task" / "bertfam.json"
    stored = json.loads(file.read_text())
    stored["options"]["labels"] = 3
    file.write_text(json.dumps(stored))
    bf.TextClassifier.from_pretrained(tmp_path / "task", labels=["a", "b", "c"])
