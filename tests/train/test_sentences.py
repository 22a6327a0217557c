"""``bertfam pretrain`` on sentences: from text files to a checkpoint that tasks start from."""

import json

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.config import PretrainRecipe, load_recipe
from bertfam_tf.objectives import Masking, Permutation, ngrams
from bertfam_tf.text import load_tokenizer
from bertfam_tf.train import pretrain
from bertfam_tf.train.corpus import Corpus
from bertfam_tf.train.directory import RunDirectory
from bertfam_tf.train.objectives import build
from tests.selection import in_full

SMALL = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
TEXT = "\n".join(
    "\n".join(f"The {a} film. The {b} plot!" for a in ("good", "bad") for b in ("good", "bad"))
    + "\n"
    for _ in range(6)
)


@pytest.fixture
def recipe(tiny, tmp_path):
    """Makes a recipe, from its own text."""
    (tmp_path / "a.txt").write_text(TEXT)

    def make(family="bert", objectives=None, unit="piece", output="run", format=None, **changes):
        objectives = objectives or {"masked_lm": 1.0}
        paired = {"nsp", "sop"} & objectives.keys()
        values = {
            "output": str(tmp_path / output),
            "model": {
                "family": family,
                "size": "tiny",
                "tokenizer": str(tiny),
                "overrides": {**SMALL, **changes.pop("overrides", {})},
            },
            "data": {
                "train": [str(tmp_path / "*.txt")],
                "dev": [str(tmp_path / "a.txt")],
                "format": format or ("segment_pairs" if paired else "full_sentences"),
                "sentences": "split",
                "length": 24,
            },
            "objectives": objectives,
            "masking": {"unit": unit},
            "train": {"steps": 6, "epochs": 2, "batch_size": 4, "learning_rate": 1e-3},
        }
        for section, keys in changes.items():
            values[section] = {**values.get(section, {}), **keys}
        file = tmp_path / "recipe.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    return make


CASES = [
    ("bert", {"masked_lm": 1.0, "nsp": 0.5}, "word"),
    ("electra", {"rtd": 50.0}, "piece"),
    ("albert", {"masked_lm": 1.0, "sop": 1.0}, "ngram"),
    ("spanbert", {"masked_lm": 1.0, "sbo": 1.0}, "span"),
    ("distilbert", {"masked_lm": 1.0}, "word"),
    ("xlnet", {"plm": 1.0}, "ngram"),
]


@pytest.mark.parametrize(("family", "objectives", "unit"), in_full(CASES, CASES[:1]))
def test_a_checkpoint_from_text(recipe, capfd, family, objectives, unit):
    sizes = {"electra": dict(embedding_size=8), "albert": dict(embedding_size=8)}
    generator = {"generator": {"num_heads": 1, "hidden_size": 8}} if "rtd" in objectives else {}
    overrides = {"overrides": sizes.get(family, {})}
    file = recipe(family, objectives, unit, **overrides, **generator)
    assert main(["pretrain", str(file)]) == 0
    metrics = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    names = {"rtd": {"rtd", "masked_lm"}, "nsp": {"pair"}, "sop": {"pair"}}
    wanted = {n for name in objectives for n in names.get(name, {name})}
    assert wanted <= metrics.keys() or wanted in ({"masked_lm"}, {"plm"})
    assert metrics["steps"] == 6
    assert all(np.isfinite(value) for value in metrics.values())
    if wanted in ({"masked_lm"}, {"plm"}):
        assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]), rel=1e-4)
    model = str(load_recipe(file, kind=PretrainRecipe).output) + "/model"
    task = bf.TextClassifier.from_pretrained(model, labels=["a", "b"])
    assert len(task.predict(["The good film."])) == 1
    if "masked_lm" in objectives:
        assert len(bf.MaskedLM.from_pretrained(model).fill("The [MASK] film.")[0]) == 5
    heads = {
        "masked_lm": "predictions|lm_head|vocab_",
        "nsp": "seq_rel",
        "sop": "sop_cl",
        "plm": "lm_loss",
    }
    stored = " ".join(load_file(f"{model}/model.safetensors"))
    for name in objectives.keys() & heads.keys():
        assert any(part in stored for part in heads[name].split("|")), (name, stored)


def test_permutations_are_of_the_text_itself(recipe):
    """No token is masked, and tokens do not see those that are predicted after them."""
    file = recipe("xlnet", {"plm": 1.0}, "ngram", masking={"longest": 2, "rate": 0.5})
    loaded = load_recipe(file, kind=PretrainRecipe)
    tokenizer = load_tokenizer(loaded.model.tokenizer)
    made = build(loaded, tokenizer)
    data = Corpus(loaded.data.dev, tokenizer, 24).batches(4, made.masking)
    inputs, targets, weights = next(iter(data))
    given, predicted, _ = made.batch(inputs, targets, weights)
    np.testing.assert_array_equal(given["token_ids"], targets["originals"])
    np.testing.assert_array_equal(predicted["token_ids"], targets["token_ids"])
    masking = Masking(tokenizer, 0.5, "word", ngrams(2), masked=0.0, random=0.0)
    ids, mask = targets["originals"], inputs["padding_mask"]
    expected = Permutation(masking)(ids, mask, targets["seeds"])
    np.testing.assert_array_equal(given["perm_mask"], expected.perm_mask)
    np.testing.assert_array_equal(given["target_mapping"], expected.target_mapping)
    assert expected.weights.numpy().sum() > 4


def test_training_goes_on_from_a_checkpoint(recipe, tmp_path):
    """Without a learning rate, the weights of the backbone and its heads are the checkpoint's."""
    objectives = {"masked_lm": 1.0, "nsp": 1.0}
    pretrain(load_recipe(recipe(objectives=objectives), kind=PretrainRecipe))
    first = str(tmp_path / "run" / "model")
    nothing = {"train": {"learning_rate": 0.0, "seed": 1}}
    again = recipe(objectives=objectives, output="again", model={"checkpoint": first}, **nothing)
    pretrain(load_recipe(again, kind=PretrainRecipe))
    one, other = (load_file(tmp_path / run / "model/model.safetensors") for run in ("run", "again"))
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_a_checkpoint_of_another_model_is_refused(recipe, tiny):
    for family, message in (
        (
            "bert",
            r"(?s)bert backbone do not match.*Wrong shapes: .* \(64, 32\), expected \(64, 16\)",
        ),
        ("albert", "config.json has the model type 'bert', which is not albert's"),
    ):
        file = recipe(family, model={"checkpoint": str(tiny)})
        with pytest.raises(ValueError, match=message):
            build(load_recipe(file, kind=PretrainRecipe), load_tokenizer(tiny))


class Killed(Exception):
    pass


@pytest.mark.full
def test_a_model_that_grows(recipe, tmp_path):
    stages = [{"layers": 1, "steps": 3}, {"layers": 2, "steps": 3, "learning_rate": 1e-3}]
    file = recipe(objectives={"masked_lm": 1.0, "nsp": 1.0})
    values = {**yaml.safe_load(file.read_text()), "stages": stages}
    file.write_text(yaml.safe_dump(values))
    grown = load_recipe(file, kind=PretrainRecipe)
    metrics = pretrain(grown)
    assert metrics["steps"] == 6
    assert np.isfinite([metrics["masked_lm"], metrics["pair"]]).all()
    assert bf.load_backbone(f"{grown.output}/model").config.num_layers == 2
    assert len((tmp_path / "run" / "history.csv").read_text().splitlines()) == 3
    values |= {"objectives": {"rtd": 1.0}, "output": str(tmp_path / "other")}
    file.write_text(yaml.safe_dump(values))
    other = load_recipe(file, kind=PretrainRecipe)
    with pytest.raises(ValueError, match="stages must be empty for rtd"):
        pretrain(other)


@pytest.mark.full
@pytest.mark.parametrize("objectives", [{"masked_lm": 1.0, "nsp": 1.0}, {"masked_lm": 1.0}])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_killed_run_ends_as_one_that_was_not(recipe, monkeypatch, objectives, at):
    train = {"train": {"backup_steps": 2}}
    whole = load_recipe(recipe(objectives=objectives, **train), kind=PretrainRecipe)
    expected = pretrain(whole)
    again = load_recipe(recipe(objectives=objectives, output="again", **train), kind=PretrainRecipe)

    def backup(self, every=1):
        found = original(self, every)
        write, written = found._write, []

        def once(metrics):
            write(metrics)
            written.append(metrics)
            if len(written) == at:
                raise Killed

        found._write = once
        return found

    original = RunDirectory.backup
    monkeypatch.setattr(RunDirectory, "backup", backup)
    with pytest.raises(Killed):
        pretrain(again)
    monkeypatch.undo()
    assert pretrain(again) == pytest.approx(expected, rel=1e-6)
    one, other = (load_file(f"{each.output}/model/model.safetensors") for each in (whole, again))
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, atol=1e-7, err_msg=name)


def test_errors(recipe):
    for options, message in (
        (dict(objectives={"mlm": 1.0}), "Unknown objective 'mlm'.* Known: masked_lm"),
        (dict(objectives={"nsp": 1.0, "sop": 1.0}), "either nsp or sop"),
        (dict(objectives={"nsp": 1.0}, format="doc_sentences"), "format must be segment_pairs or"),
        (dict(objectives={"sbo": 1.0}), "masking.unit must be span for sbo, got piece"),
        (dict(objectives={"causal_lm": 1.0}), "data.format must be stream for the objective"),
        (dict(objectives={"rtd": 1.0, "masked_lm": 1.0}), "rtd trains its generator with"),
        (dict(objectives={"rtd": 50.0}), "bert has no rtd head"),
        (dict(family="xlm"), "xlm has the input language_ids: data.train must be a table of files"),
        (dict(objectives={"plm": 1.0}), "bert has no permutation_lm head, which the objective plm"),
        (
            dict(objectives={"plm": 1.0, "masked_lm": 1.0}),
            "plm predicts tokens that are not masked",
        ),
        (
            dict(objectives={"rtd": 1.0}, model={"checkpoint": "x"}),
            "checkpoint must be null for rtd",
        ),
        (dict(masking={"rate": 2.0}), "rate must be from 0 to 1"),
        (dict(family="gpt2"), "gpt2 has no masked_lm head, which the objective masked_lm trains"),
        (dict(data={"train": ["nowhere.txt"]}), "There is no file nowhere.txt"),
        (dict(data={"format": "stream"}), "objectives must be causal_lm on a stream"),
    ):
        with pytest.raises(ValueError, match=message):
            pretrain(load_recipe(recipe(**options), kind=PretrainRecipe))
    for options, message in (
        (dict(data={"format": "pages"}), "data.format must be one of stream, full_sentences"),
        (dict(unit="letter"), "masking.unit must be one of piece, word, ngram, span"),
        (dict(train={"steps": 0}), "train.steps must be at least 1"),
        (dict(masking={"longest": 0}), "masking.longest must be at least 1, got 0"),
        (dict(data={"exponent": 2}), "data.exponent must be from 0 to 1, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            load_recipe(recipe(**options), kind=PretrainRecipe)
