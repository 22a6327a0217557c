"""What a sentence-transformers checkpoint stores beside its weights."""

import json
import shutil
import warnings

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import layers
from bertfam_tf.checkpoints import CheckpointError, convert

PREFIX = "sentence_transformers.models."
TRANSFORMER = {"type": f"{PREFIX}Transformer", "path": ""}
POOLING = {"type": f"{PREFIX}Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": f"{PREFIX}Normalize", "path": "2_Normalize"}


def _write(directory, modules, pooling=None, length=None):
    (directory / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if length is not None:
        file = directory / "sentence_bert_config.json"
        file.write_text(json.dumps({"max_seq_length": length}))


@pytest.mark.full
@pytest.mark.parametrize(
    ("modules", "pooling", "expected"),
    [
        (
            [TRANSFORMER, POOLING, NORMALIZE],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
            ("mean", True),
        ),
        ([TRANSFORMER, POOLING], {"pooling_mode_cls_token": True}, ("first", False)),
        ([TRANSFORMER, POOLING], {"embedding_dimension": 32}, ("mean", False)),
        ([TRANSFORMER], None, ("mean", False)),
    ],
)
def test_options(tiny_copy, modules, pooling, expected):
    _write(tiny_copy, modules, pooling, length=10)
    task = bf.TextEmbedder.from_pretrained(tiny_copy)
    assert (task.pooling, task.normalize, task.max_length) == (*expected, 10)
    assert bf.TextEmbedder.from_pretrained(tiny_copy, max_length=7).max_length == 7


@pytest.mark.parametrize(
    ("modules", "pooling", "error"),
    [
        ([TRANSFORMER, POOLING], {"pooling_mode_other": True}, "pools by .*pooling_mode_other"),
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode": ["mean", "sum"]},
            "pools by .*sum.*expected some of cls, max, mean",
        ),
        ([TRANSFORMER, POOLING], None, r"pools by \[\]"),
        (
            [TRANSFORMER, {**POOLING, "type": f"{PREFIX}CNN"}],
            None,
            "does not have a single Pooling",
        ),
        ({"a": 1}, None, "is not sentence-transformers' list of modules"),
        ([{}], None, "is not sentence-transformers' list of modules"),
    ],
)
def test_what_is_not_supported(tiny_copy, modules, pooling, error):
    _write(tiny_copy, modules, pooling)
    with pytest.raises(CheckpointError, match=error):
        bf.TextEmbedder.from_pretrained(tiny_copy)


def test_conversions_keep_the_modules(tiny_copy, tmp_path):
    _write(tiny_copy, [TRANSFORMER, POOLING], {"pooling_mode_cls_token": True}, length=10)
    (tiny_copy / "config_sentence_transformers.json").write_text('{"prompts": {"query": "a"}}')
    # Folders that are no modules are not copied, so they may be links.
    (tmp_path / "newest").mkdir()
    (tmp_path / "newest" / "config.json").write_text("{}")
    (tiny_copy / "latest").symlink_to(tmp_path / "newest")
    convert(tiny_copy, tmp_path / "out")
    names = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json")
    for name in (*names, "config_sentence_transformers.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tiny_copy / name).read_bytes()
    pooling = tiny_copy / "1_Pooling" / "config.json"
    pooling.rename(tmp_path / "outside")
    pooling.symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match=r"1_Pooling/config.json is a link to .*outside"):
        convert(tiny_copy, tmp_path / "other")


def test_another_similarity_than_the_cosine_is_a_warning(tiny_copy):
    _write(tiny_copy, [TRANSFORMER, POOLING], {"pooling_mode_cls_token": True})
    file = tiny_copy / "config_sentence_transformers.json"
    file.write_text('{"similarity_fn_name": "dot"}')
    with pytest.warns(UserWarning, match=r"compares vectors by 'dot'; score, .* by the cosine"):
        bf.TextEmbedder.from_pretrained(tiny_copy)
    file.write_text('{"similarity_fn_name": "cosine"}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bf.TextEmbedder.from_pretrained(tiny_copy)


PROMPTS = {"query": "a film: ", "passage": "the plot of ", "none": ""}
FILE = "config_sentence_transformers.json"
TEXTS = ["a good film", "", "the cast of it all was not bad , good film of a plot"]


def _embedder(smallest, **options):
    task = bf.TextEmbedder.from_pretrained(smallest, max_length=12, **options)
    for i, layer in enumerate(task.projection_layers):
        for variable in layer.weights:
            noise = np.random.default_rng(i).normal(0, 0.3, variable.shape)
            variable.assign(noise.astype("float32"))
    return task


@pytest.mark.full
def test_back_from_both_formats(smallest, tmp_path):
    """Everything at once: several poolings, projections, a cut, prompts that are not pooled."""
    task = _embedder(
        smallest,
        pooling=("mean", "max", "weighted_mean", "mean_sqrt_length", "first", "last"),
        projections=[{"width": 9}, {"width": 7, "activation": "gelu", "bias": False}],
        dimensions=5,
        prompts=PROMPTS,
        default_prompt="query",
        include_prompt=False,
    )
    task.save(tmp_path / "saved")
    task.save_pretrained(tmp_path / "published")
    names = (..., None, *PROMPTS)
    expected = {name: task.predict(TEXTS, prompt=name) for name in names}
    assert expected[...].shape == (3, 5)
    np.testing.assert_allclose(np.linalg.norm(expected[...], axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(expected[...], expected["query"])
    np.testing.assert_array_equal(expected[None], expected["none"])
    assert np.abs(expected["query"] - expected["passage"]).max() > 0.01
    for back in (
        bf.load(tmp_path / "saved"),
        bf.TextEmbedder.from_pretrained(tmp_path / "published"),
    ):
        assert back.options == task.options
        for name in names:
            np.testing.assert_allclose(back.predict(TEXTS, prompt=name), expected[name], atol=1e-6)
    with pytest.raises(ValueError, match="no prompt 'quer'; there are: query, passage, none"):
        task.predict(TEXTS, prompt="quer")
    with pytest.raises(ValueError, match="include_prompt must be true"):
        task.export_tflite(tmp_path / "file.tflite")


@pytest.mark.parametrize("left", [False, True])
def test_poolings_by_their_definitions(left):
    """And padding, which is not zero here, changes nothing."""
    x = np.random.default_rng(0).normal(size=(1, 4, 3)).astype("float32") - 9
    rank = np.arange(1, 5)[:, None]
    expected = {
        "mean": x[0].mean(0),
        "first": x[0, 0],
        "last": x[0, 3],
        "max": x[0].max(0),
        "weighted_mean": (x[0] * rank).sum(0) / 10,
        "mean_sqrt_length": x[0].sum(0) / 2,
    }
    pad = [(0, 0), (2, 0) if left else (0, 2), (0, 0)]
    padded, mask = np.pad(x, pad, constant_values=5.0), np.pad(np.ones((1, 4), int), pad[:2])
    after = mask * (np.cumsum(mask, 1) > 1)
    without = {**expected, "first": x[0, 1], "mean": x[0, 1:].mean(0), "max": x[0, 1:].max(0)}
    without["weighted_mean"] = (x[0, 1:] * rank[1:]).sum(0) / 9
    without["mean_sqrt_length"] = x[0, 1:].sum(0) / 3**0.5
    for kind in layers.TokenPooling.KINDS:
        pooling = layers.TokenPooling([kind])
        np.testing.assert_allclose(pooling(padded, mask)[0], expected[kind], rtol=1e-5)
        np.testing.assert_allclose(pooling(padded, mask, after)[0], without[kind], rtol=1e-5)
        assert not np.any(pooling(padded, 0 * mask))


@pytest.mark.full
def test_batches_do_not_change_vectors(smallest):
    for kind in layers.TokenPooling.KINDS:
        task = _embedder(smallest, pooling=kind, normalize=False)
        alone = [task.predict(text)[0] for text in TEXTS]
        np.testing.assert_allclose(task.predict(TEXTS), alone, atol=2e-5)


@pytest.mark.full
def test_export_has_a_signature_for_each_prompt(smallest, tmp_path):
    task = _embedder(smallest, prompts=PROMPTS, default_prompt="query", include_prompt=False)
    served = tf.saved_model.load(str(task.export(tmp_path)))
    assert set(served.signatures) == {"serving_default", "ids", *PROMPTS}
    for name, prompt in (("serving_default", ...), *((name, name) for name in PROMPTS)):
        found = served.signatures[name](text=tf.constant(TEXTS))["embedding"]
        np.testing.assert_allclose(found, task.predict(TEXTS, prompt=prompt), atol=1e-5)


@pytest.mark.extended
def test_the_transformer_in_a_folder(smallest, tmp_path):
    """As the library wrote it at first, with the length beside it."""
    task = _embedder(smallest, pooling="max", normalize=False)
    task.save_pretrained(tmp_path / "new")
    old = tmp_path / "old"
    (old / "0_Transformer").mkdir(parents=True)
    for file in (tmp_path / "new").iterdir():
        kept = file.name in ("modules.json", "1_Pooling", FILE)
        file.rename((old if kept else old / "0_Transformer") / file.name)
    modules = json.loads((old / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (old / "modules.json").write_text(json.dumps(modules))
    back = bf.TextEmbedder.from_pretrained(old)
    assert back.options == task.options
    np.testing.assert_allclose(back.predict(TEXTS), task.predict(TEXTS), atol=1e-6)


def _edited(file, **changes):
    return file, lambda said: {**said, **changes}


@pytest.mark.parametrize(
    ("file", "change", "error"),
    [
        (
            *_edited("2_Dense/config.json", activation_function="os.system"),
            "activation 'os.system'",
        ),
        (*_edited("2_Dense/config.json", activation_function="torch.nn.Hardtanh"), "expected one"),
        (*_edited("2_Dense/config.json", out_features="9"), "out_features = '9', expected int"),
        (*_edited("2_Dense/config.json", out_features=8), "Wrong shapes"),
        (*_edited("2_Dense/config.json", use_residual=True), "use_residual"),
        (
            *_edited("2_Dense/config.json", module_input_name="token_embeddings"),
            "module_input_name",
        ),
        (*_edited(FILE, prompts=["a"]), "not a table"),
        (*_edited(FILE, prompts={"a": 1}), "not a table"),
        (*_edited(FILE, default_prompt_name="a"), "expected one of query, passage, none"),
        (*_edited(FILE, truncate_dim=0), "truncate_dim = 0"),
        (*_edited("sentence_bert_config.json", max_seq_length=0), "maximum length of 0"),
        (*_edited("sentence_bert_config.json", transformer_task="fill-mask"), "transformer_task"),
        ("modules.json", lambda said: [{**said[0], "path": "../.."}, *said[1:]], "outside of it"),
        ("modules.json", lambda said: [{**said[0], "type": "mine.Model"}], "is not run"),
        ("modules.json", lambda said: [said[0], said[1], said[3], said[2]], "'Dense' after"),
        ("modules.json", lambda said: said[1:], "does not begin with its only Transformer"),
        ("modules.json", lambda said: [*said, said[1]], "single Pooling"),
    ],
)
def test_changed_files(published, tmp_path, file, change, error):
    directory = shutil.copytree(published, tmp_path / "copy")
    said = json.loads((directory / file).read_text("utf-8"))
    (directory / file).write_text(json.dumps(change(said)))
    with pytest.raises(CheckpointError, match=error):
        bf.TextEmbedder.from_pretrained(directory)


@pytest.fixture(scope="module")
def published(smallest, tmp_path_factory):
    directory = tmp_path_factory.mktemp("published") / "model"
    task = _embedder(smallest, projections=[{"width": 9}], prompts=PROMPTS)
    task.save_pretrained(directory)
    return directory


def test_files_that_are_not_json(tiny_copy):
    (tiny_copy / "modules.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"modules\.json is not JSON"):
        bf.TextEmbedder.from_pretrained(tiny_copy)
