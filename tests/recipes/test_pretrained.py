"""From a recipe of pretraining to its directory, to tasks, and to another run of pretraining."""

import json
import logging

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.checkpoints import convert
from bertfam_tf.cli import main
from bertfam_tf.files import exclusive_lock
from bertfam_tf.recipes import pretrain, pretrained
from bertfam_tf.recipes.objectives import OBJECTIVES, build
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.tasks import publish
from bertfam_tf.text import load_tokenizer
from tests.selection import in_full

SMALL = dict(hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16)
TEXT = "\n".join(
    "\n".join(f"The {a} film. The {b} plot!" for a in ("good", "bad") for b in ("good", "bad"))
    + "\n"
    for _ in range(6)
)
ALBERT = {**SMALL, "embedding_size": 8, "sharing": "attention"}


@pytest.fixture
def make(tiny, tmp_path):
    """Makes a recipe with the defaults that users get, but small."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)

    def recipe(family, objectives, overrides=SMALL, output="run", steps=3, **changes):
        paired = not {"nsp", "sop"}.isdisjoint(objectives)
        values = {
            "output": str(tmp_path / output),
            "model": {
                "family": family,
                "size": "tiny",
                "tokenizer": str(tiny),
                "overrides": overrides,
                **changes.pop("model", {}),
            },
            "data": {
                "train": [str(text)],
                "dev": [str(text)],
                "format": "segment_pairs" if paired else "full_sentences",
                "sentences": "split",
                "length": 24,
            },
            "objectives": objectives,
            "train": {"steps": steps, "epochs": 1, "batch_size": 4, **changes.pop("train", {})},
            **changes,
        }
        file = tmp_path / f"{output}.yaml"
        file.write_text(yaml.safe_dump(values))
        return load_recipe(file, kind=PretrainRecipe)

    return recipe


def classified(path):
    task = bf.TextClassifier.from_pretrained(path, labels=["bad", "good"], max_length=16)
    assert len(task.predict(["The good film."])) == 1
    return task


def written(recipe, directory):
    """What a run would leave without a step of training."""
    tokenizer = load_tokenizer(recipe.model.tokenizer)
    directory.mkdir()
    pretrained.write(directory, build(recipe, tokenizer), tokenizer, length=24)
    return directory


def weights_in(directory):
    return load_file(directory / "model.safetensors")


def weights_of(path):
    return {weight.path: weight.numpy() for weight in bf.load_backbone(path).weights}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(other[name], one[name], err_msg=name)


@pytest.mark.extended
@pytest.mark.parametrize("sharing", in_full(["attention", "feed_forward", "none"], ["attention"]))
def test_a_model_that_hugging_face_cannot_represent(make, tmp_path, caplog, capsys, sharing):
    """It is saved in this package's format, and all that starts from a run starts from it."""
    objectives = {"mlm": 1.0, "sop": 1.0}
    overrides = {**ALBERT, "sharing": sharing, "num_layers": 3}
    reason = f"albert format cannot represent sharing = '{sharing}'"
    with caplog.at_level(logging.WARNING):
        pretrain(make("albert", objectives, overrides))
    assert reason in caplog.text
    model = tmp_path / "run" / "model"
    assert bf.load_backbone(model).config.sharing == sharing
    stored = weights_in(model)
    backbone = weights_of(model)
    assert {name.split("_head/")[0] for name in stored.keys() - backbone.keys()} == {
        "masked_lm",
        "pair",
    }
    # bf.load and from_pretrained read the same task, and give the same answers.
    task, same = bf.load(model), bf.MaskedLM.from_pretrained(model)
    assert task.fill("The [MASK] film.") == same.fill("The [MASK] film.")
    # Another run begins with these weights.
    again = make("albert", objectives, overrides, model={"checkpoint": str(model)})
    assert_same(stored, weights_in(written(again, tmp_path / "again")))
    capsys.readouterr()
    assert main(["convert", str(model), str(tmp_path / "converted")]) == 2
    assert reason in capsys.readouterr().err


def test_two_processes_do_not_pretrain_one_model(make, tmp_path):
    lock = exclusive_lock(tmp_path / "run", tmp_path / "run" / ".lock")
    with lock, pytest.raises(BlockingIOError, match="run is being written by another process"):
        pretrain(make("bert", {"mlm": 1.0}))


@pytest.mark.extended
def test_a_model_without_a_task(make, tmp_path):
    """Heads that no task has: bf.load says what reads it."""
    model = written(make("albert", {"sop": 1.0}, ALBERT), tmp_path / "model")
    classified(model)
    with pytest.raises(ValueError, match=r"without a task; from_pretrained of a task starts from"):
        bf.load(model)
    with pytest.raises(ValueError, match="format cannot represent sharing = 'attention'"):
        convert(model, tmp_path / "converted")


@pytest.mark.extended
def test_a_tokenizer_that_hugging_face_lacks(make, tmp_path, caplog, monkeypatch):
    """The run is saved all the same, and what was written before is removed."""

    def save(tokenizer, directory, **_):
        (directory / "vocab.txt").write_text("")
        raise ValueError("its words differ")

    monkeypatch.setattr(publish, "save_published", save)
    model = written(make("bert", {"mlm": 1.0, "nsp": 1.0}), tmp_path / "model")
    assert {each.name for each in model.iterdir()} == {
        "bertfam.json",
        "model.safetensors",
        "tokenizer",
    }
    assert "its words differ The model is saved in this package's own format" in caplog.text
    assert len(bf.load(model).fill("The [MASK] film.")[0]) == 5
    assert isinstance(classified(model).backbone.config.num_layers, int)


@pytest.mark.parametrize(
    "name", in_full(["layer_7/attention/query/kernel", "tokens_head/x", "other"], ["tokens_head/x"])
)
def test_unknown_tensors_are_refused(make, tmp_path, name):
    """Also in this package's format, every tensor is used or named in its description."""
    model = written(make("albert", {"mlm": 1.0}, ALBERT), tmp_path / "model")
    file = model / "model.safetensors"
    save_file({**load_file(file), name: np.zeros((2, 2), "float32")}, file)
    for load in (bf.load_backbone, bf.load):
        with pytest.raises(ValueError, match="its sha256 differs"):
            load(model)
    description = json.loads((model / "bertfam.json").read_text())
    description["sha256"].pop("model.safetensors")
    (model / "bertfam.json").write_text(json.dumps(description))
    for load in (bf.load_backbone, bf.load):
        with pytest.raises(ValueError, match=f"Unexpected tensors: {name}"):
            load(model)


GENERATOR = {"num_heads": 1, "hidden_size": 8}


@pytest.mark.extended
def test_generator_is_saved(make, tmp_path):
    """As a checkpoint that MaskedLM reads, and that another run starts from."""
    overrides = {**SMALL, "embedding_size": 8}
    pretrain(make("electra", {"rtd": 50.0}, overrides, generator=GENERATOR))
    model = tmp_path / "run" / "model"
    task = bf.MaskedLM.from_pretrained(model / "generator")
    assert len(task.fill("The [MASK] film.")[0]) == 5
    assert task.backbone.config.hidden_size == 8
    classified(model)
    # Only the embeddings are shared.
    one, other = weights_of(model), weights_of(model / "generator")
    equal = {name for name in one.keys() & other.keys() if np.array_equal(one[name], other[name])}
    assert {name.split("/")[0] for name in equal if "embedding" in name} == {
        "token_embedding",
        "position_embedding",
        "segment_embedding",
        "embedding_norm",
    }
    changes = {"generator": GENERATOR, "model": {"checkpoint": str(model)}}
    again = written(make("electra", {"rtd": 50.0}, overrides, **changes), tmp_path / "again")
    converted = convert(model, tmp_path / "converted")
    for folder in (".", "generator"):
        for each in (again, converted):
            assert_same(weights_in(model / folder), weights_in(each / folder))


def test_generator_of_a_recipe_that_does_not_describe_it(make, tiny, caplog):
    overrides = {"num_layers": 2, "num_heads": 8, "hidden_size": 64, "intermediate_size": 128}
    recipe = make("electra", {"rtd": 50.0}, {**overrides, "embedding_size": 8})
    with caplog.at_level(logging.INFO):
        generator, _ = build(recipe, load_tokenizer(tiny)).generator
    config = generator.config
    sizes = (config.num_layers, config.num_heads, config.hidden_size, config.intermediate_size)
    assert sizes == (2, 2, 16, 32)
    assert "the generator has num_heads 2, hidden_size 16, intermediate_size 32" in caplog.text


@pytest.mark.extended
def test_generator_that_is_missing_or_another(make, tmp_path, tiny):
    overrides = {**SMALL, "embedding_size": 8}
    recipe = make("electra", {"rtd": 50.0}, overrides, generator=GENERATOR)
    model = written(recipe, tmp_path / "model")
    other = make(
        "electra",
        {"rtd": 50.0},
        overrides,
        generator={"num_heads": 1, "hidden_size": 4},
        model={"checkpoint": str(model)},
    )
    with pytest.raises(ValueError, match=r"(?s)generator and the electra backbone do not match.*"):
        build(other, load_tokenizer(tiny))
    (model / "generator").rename(model / "moved")
    with pytest.raises(ValueError, match="has no folder generator with the generator of rtd"):
        build(other, load_tokenizer(tiny))


@pytest.mark.extended
def test_span_boundary_head_is_saved(make, tmp_path, caplog):
    objectives, span = {"mlm": 1.0, "sbo": 1.0}, {"masking": {"unit": "span"}}
    pretrain(make("spanbert", objectives, **span))
    model = tmp_path / "run" / "model"
    stored = load_file(model / "pretraining_heads.safetensors")
    assert {name.split("/")[0] for name in stored} == {"sbo_head"}
    assert not any("sbo" in name for name in load_file(model / "model.safetensors"))
    classified(model)
    changes = {"model": {"checkpoint": str(model)}, **span}
    again = written(make("spanbert", objectives, **changes), tmp_path / "again")
    assert_same(stored, load_file(again / "pretraining_heads.safetensors"))
    converted = convert(model, tmp_path / "converted")
    assert_same(stored, load_file(converted / "pretraining_heads.safetensors"))
    # Without the objective, its head is left out.
    masked = written(make("spanbert", {"mlm": 1.0}, **changes), tmp_path / "masked")
    assert not (masked / "pretraining_heads.safetensors").exists()
    # A checkpoint without the head, such as a published one.
    (model / "pretraining_heads.safetensors").unlink()
    with caplog.at_level(logging.INFO):
        build(make("spanbert", objectives, **changes), load_tokenizer(model))
    assert "The sbo head is initialized at random" in caplog.text


FAMILIES = [
    (name, objective) for name in registry.families() for objective in registry.get(name).objectives
]
ELSEWHERE = {
    "clm": "data.format: stream",
    "bilm": "data.format: sentences",
    "distillation": "distill",
}


def test_recipes_know_the_objectives_that_families_prints():
    assert {objective for _, objective in FAMILIES} | {"sop"} == {*OBJECTIVES, *ELSEWHERE}


@pytest.mark.parametrize(
    ("family", "objective"),
    in_full(FAMILIES, [("modernbert", "mlm"), ("xlm", "mlm"), ("tinybert", "distillation")]),
)
def test_recipes_take_the_objectives_of_a_family(make, tiny, family, objective):
    """Or say how the objective is trained."""
    tokenizer = load_tokenizer(tiny)
    recipe = make(family, {objective: 1.0}, {}, masking={"unit": "span"})
    reason = ELSEWHERE.get(objective)
    if objective != "clm" and hasattr(registry.get(family).config, "num_languages"):
        reason = "data.train_translations" if objective == "tlm" else "must be a table of files"
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            build(recipe, tokenizer)
        return
    # Not the id in the family's published vocabulary.
    assert build(recipe, tokenizer).backbone.config.pad_id == tokenizer.special_ids["pad"]


def test_old_names_of_objectives(make, tiny):
    with pytest.warns(FutureWarning, match="masked_lm is called objectives"):
        recipe = make("bert", {"masked_lm": 1.0, "nsp": 0.5})
    assert recipe.objectives == {"mlm": 1.0, "nsp": 0.5}
    assert list(build(recipe, load_tokenizer(tiny)).learner.objectives[0].weights) == ["masked_lm"]
    with pytest.raises(ValueError, match=r"masked_lm is called .*mlm, got both"):
        make("bert", {"masked_lm": 1.0, "mlm": 1.0})
    with pytest.raises(ValueError, match=r"Unknown objective 'mln'.*Did you mean 'mlm'"):
        build(make("bert", {"mln": 1.0}), load_tokenizer(tiny))


@pytest.mark.extended
def test_pairs_from_a_checkpoint_without_a_pooler(make, tiny, tmp_path):
    tokenizer = load_tokenizer(tiny)
    backbone = bf.build("bert", vocab_size=64, **SMALL, pooler=False)
    bf.MaskedLM(backbone, tokenizer).save_pretrained(tmp_path / "masked")
    checkpoint = {"checkpoint": str(tmp_path / "masked")}
    built = build(make("bert", {"mlm": 1.0, "nsp": 1.0}, model=checkpoint), tokenizer)
    assert built.backbone.config.pooler
    np.testing.assert_array_equal(built.backbone.weights[0], backbone.weights[0])
    assert not build(make("bert", {"mlm": 1.0}, model=checkpoint), tokenizer).backbone.config.pooler


@pytest.mark.extended
def test_a_saved_task_is_a_checkpoint(tiny, tmp_path):
    """Of any other task, with what both have in common; and of the same one."""
    backbone = bf.build("bert", vocab_size=64, **SMALL)
    tokenizer, texts = load_tokenizer(tiny), ["The good film.", "The bad plot!"]
    classifier = bf.TextClassifier(backbone, tokenizer, labels=["bad", "good"], max_length=12)
    classifier.save(tmp_path / "classifier")
    same = bf.TextClassifier.from_pretrained(tmp_path / "classifier")
    assert (same.labels, same.max_length) == (["bad", "good"], 12)
    assert repr(same.predict(texts)) == repr(classifier.predict(texts))
    # Weights that are neither the backbone's nor a head of the family.
    embedder = bf.TextEmbedder(backbone, tokenizer, projections=[{"width": 4}])
    embedder.save(tmp_path / "embedder")
    other = classified(tmp_path / "embedder")
    assert_same(*({w.path: w.numpy() for w in each.backbone.weights} for each in (embedder, other)))
