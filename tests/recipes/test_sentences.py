"""``bertfam pretrain`` on sentences: from text files to a checkpoint that tasks start from."""

import dataclasses
import itertools
import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from safetensors.numpy import load_file
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.distribute import input_ops

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.corpora import Corpus, Format, Masking, Permutation, Shards, ngrams, shards
from bertfam_tf.corpora.documents import read_documents
from bertfam_tf.recipes import objectives, pretrain
from bertfam_tf.recipes.objectives import build
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.recipes.sentences import _Data
from bertfam_tf.text import load_tokenizer
from bertfam_tf.training.callbacks.backup import Backup
from bertfam_tf.training.callbacks.logs import History
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import Stage
from tests import published
from tests.selection import in_full, only_in

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
        objectives = objectives or {"mlm": 1.0}
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
            merged = isinstance(keys, dict)
            values[section] = {**values.get(section, {}), **keys} if merged else keys
        file = tmp_path / "recipe.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    return make


CASES = [
    ("bert", {"mlm": 1.0, "nsp": 0.5}, "word"),
    ("electra", {"rtd": 50.0}, "piece"),
    ("albert", {"mlm": 1.0, "sop": 1.0}, "ngram"),
    ("spanbert", {"mlm": 1.0, "sbo": 1.0}, "span"),
    ("distilbert", {"mlm": 1.0}, "word"),
    ("xlnet", {"plm": 1.0}, "ngram"),
]


@pytest.mark.extended
def test_metrics_are_of_the_epoch_that_is_kept(recipe, tmp_path):
    settings = {"steps": 24, "epochs": 12, "learning_rate": 0.5, "warmup": 0.0, "clip_norm": None}
    settings |= {"schedule": "constant", "patience": 1}
    metrics = pretrain(load_recipe(recipe(train=settings), (), PretrainRecipe))
    history = np.genfromtxt(tmp_path / "run" / "history.csv", delimiter=",", names=True)
    assert history["val_loss"].min() < history["val_loss"][-1]
    assert metrics["loss"] == pytest.approx(history["val_loss"].min(), rel=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize(("family", "objectives", "unit"), in_full(CASES, CASES[:1]))
def test_a_checkpoint_from_text(recipe, tmp_path, capfd, recwarn, family, objectives, unit):
    sizes = {"electra": dict(embedding_size=8), "albert": dict(embedding_size=8)}
    generator = {"generator": {"num_heads": 1, "hidden_size": 8}} if "rtd" in objectives else {}
    overrides = {"overrides": sizes.get(family, {})}
    file = recipe(family, objectives, unit, **overrides, **generator)
    assert main(["pretrain", str(file)]) == 0
    assert not [w for w in recwarn if "Gradients do not exist" in str(w.message)]
    metrics = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    names = {
        "mlm": {"masked_lm"},
        "rtd": {"rtd", "masked_lm"},
        "nsp": {"pair"},
        "sop": {"pair"},
        "plm": {"permutation_lm"},
    }
    wanted = {n for name in objectives for n in names.get(name, {name})}
    assert wanted <= metrics.keys() or wanted in ({"masked_lm"}, {"permutation_lm"})
    assert metrics["steps"] == 6
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(0 <= metrics[f"{name}_accuracy"] <= 1 for name in wanted)
    for name in wanted & {"masked_lm", "sbo"}:
        loss = metrics.get(name, metrics["loss"])
        assert metrics[f"{name}_perplexity"] == pytest.approx(np.exp(loss), rel=1e-4)
    history = (tmp_path / "run" / "history.csv").read_text().splitlines()[0].split(",")
    assert {f"{split}{name}_accuracy" for name in wanted for split in ("", "val_")} <= {*history}
    model = str(load_recipe(file, kind=PretrainRecipe).output) + "/model"
    task = bf.TextClassifier.from_pretrained(model, labels=["a", "b"])
    assert len(task.predict(["The good film."])) == 1
    if "mlm" in objectives:
        assert len(bf.MaskedLM.from_pretrained(model).fill("The [MASK] film.")[0]) == 5
    heads = {
        "mlm": "predictions|lm_head|vocab_",
        "nsp": "seq_rel",
        "sop": "sop_cl",
        "plm": "lm_loss",
    }
    stored = " ".join(load_file(f"{model}/model.safetensors"))
    for name in objectives.keys() & heads.keys():
        assert any(part in stored for part in heads[name].split("|")), (name, stored)


@pytest.mark.extended
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


@pytest.mark.full
def test_training_goes_on_from_a_checkpoint(recipe, tmp_path):
    """Without a learning rate, the weights of the backbone and its heads are the checkpoint's."""
    objectives = {"mlm": 1.0, "nsp": 1.0}
    pretrain(load_recipe(recipe(objectives=objectives), kind=PretrainRecipe))
    first = str(tmp_path / "run" / "model")
    nothing = {"train": {"learning_rate": 1e-30, "seed": 1}}
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


@pytest.fixture
def examples(recipe, tiny, tmp_path):
    """A folder of shards, of the same text."""
    folder, text = tmp_path / "shards", tmp_path / "a.txt"
    form = Format(bf.load_tokenizer(tiny), 24, "segment_pairs")
    options = {"documents": "blank_line", "sentences": "split", "seed": 0}
    units = shards.units_of([(str(text), text.stat().st_size)], 300, "blank_line")
    job = shards.description(form, files=[], unit=300, **options)
    shards.begin(folder, job)
    for unit in units:
        shards.write_shard(folder, unit, form, **options)
    shards.finish(folder, job, units)
    return folder


@pytest.mark.extended
def test_workers_share_out_the_examples_of_a_batch(examples, tiny):
    """Not the files or the passes, as TensorFlow would where it finds files."""
    tokenizer = load_tokenizer(tiny)
    form = Format(tokenizer, 24, "segment_pairs")
    data = Shards([examples], form, shuffle=4).batches(5, Masking(tokenizer), passes=None).take(6)
    # As ``MultiWorkerMirroredStrategy`` does it.
    split = distribute._LegacyRebatchDataset(data, 2)
    parts = [input_ops.auto_shard_dataset(split, 2, index, 2) for index in range(2)]
    found = [[targets["seeds"].numpy() for _, targets, _ in each] for each in (data, *parts)]
    assert [len(each) for each in found[1]] == [3] * 6
    for whole, *two in zip(*found, strict=True):
        np.testing.assert_array_equal(np.concatenate(two), whole)


@pytest.mark.full
def test_shards_in_place_of_text(recipe, examples, tmp_path):
    data = {"train": [str(examples)], "dev": [str(examples)]}
    changes = dict(objectives={"mlm": 1.0, "nsp": 1.0}, train={"steps": None, "epochs": 1})
    metrics = pretrain(load_recipe(recipe(data=data, **changes), kind=PretrainRecipe))
    number = json.loads((examples / "card.json").read_text())["counts"]["examples"]
    assert metrics["examples"] == number
    assert metrics["steps"] == -(-number // 4)
    assert np.isfinite([metrics["masked_lm"], metrics["pair"]]).all()
    for other, message in (
        ({"length": 20}, "examples of another length: 24, expected 20"),
        (
            {"format": "sentence_pairs"},
            "another format: 'segment_pairs', expected 'sentence_pairs'",
        ),
        ({"train": [str(examples), "a.txt"]}, "text files and folders of shards together"),
        ({"train": [str(tmp_path)]}, "has no card.json"),
    ):
        file = recipe(output="other", data={**data, **other}, **changes)
        with pytest.raises(ValueError, match=message):
            pretrain(load_recipe(file, kind=PretrainRecipe))


BOTH, MASKED = {"mlm": 1.0, "nsp": 1.0}, {"mlm": 1.0}


class Killed(Exception):
    pass


@pytest.mark.full
def test_a_model_that_grows(recipe, tmp_path):
    stages = [{"layers": 1, "steps": 3}, {"layers": 2, "steps": 3, "learning_rate": 1e-3}]
    file = recipe(objectives={"mlm": 1.0, "nsp": 1.0}, train={"steps": None, "epochs": 3})
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
    with pytest.raises(ValueError, match=r"stages\[i\].layers must be null or omitted for rtd"):
        pretrain(other)


@pytest.mark.extended
def test_a_model_without_positions_takes_texts_of_the_longest_stage(recipe):
    stages = [{"steps": 1, "length": 12}, {"steps": 1, "length": 40}]
    changes = {"stages": stages, "train": {"steps": None, "epochs": 3}}
    made = load_recipe(recipe("xlnet", {"plm": 1.0}, **changes), kind=PretrainRecipe)
    pretrain(made)
    config = json.loads(Path(made.output, "model", "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 40


@pytest.mark.full
def test_masks_at_the_spans_of_a_tagger(recipe, smallest, tiny, tmp_path):
    tagger = bf.TokenTagger.from_pretrained(smallest, ["O", "B-PER", "B-LOC"])
    rng = np.random.default_rng(2)
    for variable in tagger.backbone.trainable_variables:
        variable.assign_add(rng.normal(0, 0.3, variable.shape).astype("float32"))
    tagger.save(tmp_path / "tagger")
    masking = {"tagger": str(tmp_path / "tagger"), "labels": ["LOC"], "rate": 1.0, "words": 0.0}
    made = load_recipe(recipe(masking={"unit": "tagged", **masking}), kind=PretrainRecipe)
    tokenizer = load_tokenizer(tiny)
    documents = read_documents(made.data.dev, sentences="split")
    sentences = [sentence for document in documents for sentence in document]
    entities = [each for found in tagger.entities(sentences) for each in found]
    names = [each["entity"] for each in entities if each["label"] == "LOC"]
    expected = Counter(tokenizer.tokenize(names).flat_values.numpy().tolist())
    assert 0 < len(names) < len(entities)
    masked = Counter()
    data = _Data(made, tokenizer, objectives.build(made, tokenizer))
    for _, targets, weights in data.held_out(24):
        masked.update(targets["token_ids"].numpy()[weights.numpy() > 0].tolist())
    assert masked == expected
    assert pretrain(made)["steps"] == 6
    for changes, message in (
        ({"labels": ["ORG"]}, "Unknown label of masking.labels 'ORG'.* LOC, PER"),
        ({"tagger": None}, "masking.tagger is required by masking.unit tagged"),
    ):
        file = recipe(output="other", masking={"unit": "tagged", **masking, **changes})
        with pytest.raises(ValueError, match=message):
            pretrain(load_recipe(file, kind=PretrainRecipe))


@pytest.mark.extended
def test_spans_of_tags_without_types(recipe, smallest, tiny, tmp_path):
    tagger = bf.TokenTagger.from_pretrained(smallest, ["B", "I"])
    tagger.save(tmp_path / "tagger")
    masking = {"unit": "tagged", "tagger": str(tmp_path / "tagger")}
    made = load_recipe(recipe(masking=masking), kind=PretrainRecipe)
    tokenizer = load_tokenizer(tiny)
    data = _Data(made, tokenizer, objectives.build(made, tokenizer))
    [expected] = tagger.entities(["the film"])
    assert data._spans(["the film"]) == [[(each["start"], each["end"]) for each in expected]]


@pytest.mark.extended
def test_one_document_has_no_next_sentences(recipe):
    """Read with the default, a blank line between documents, of which there is none."""
    for objective, split in (("nsp", "train"), ("nsp", "dev")):
        file = recipe(objectives={"mlm": 1.0, objective: 1.0})
        (file.parent / "one.md").write_text(TEXT.replace("\n\n", "\n"))
        values = yaml.safe_load(file.read_text())
        values["data"][split] = [str(file.parent / "one.md")]
        file.write_text(yaml.safe_dump(values))
        with pytest.raises(ValueError, match=r"nsp needs pairs with both labels.*one\.md has"):
            pretrain(load_recipe(file, kind=PretrainRecipe))


BY_TOKENS = {"batch_size": None, "batch_tokens": 96, "backup_steps": 2}


@pytest.mark.full
@pytest.mark.parametrize("at", [1, 2, 3])
def test_batches_of_tokens_by_recipe(recipe, monkeypatch, at):
    """A killed run reads the batches that are left."""
    options = dict(format="doc_sentences", train={**BY_TOKENS, "steps": None, "epochs": 2})
    whole, again = (
        load_recipe(recipe(output=name, **options), kind=PretrainRecipe)
        for name in ("whole", "again")
    )
    seen, resumed = [], []
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, seen)
        expected = pretrain(whole)
    assert expected["steps"] == len(seen) >= 4
    assert all(rows * length <= 96 + 24 for rows, length in seen)
    killed(again, at, monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, resumed)
        assert pretrain(again) == pytest.approx(expected, rel=1e-6)
    assert 0 < len(resumed) < len(seen)
    assert resumed == seen[-len(resumed) :]
    assert_equal_models(whole, again)


@pytest.mark.full
@pytest.mark.parametrize(
    ("objectives", "source", "at"),
    [
        *((objectives, "text", at) for objectives in (BOTH, MASKED) for at in (1, 2, 4)),
        *((BOTH, "shards", at) for at in (1, 2, 4)),
    ],
)
def test_a_killed_run_ends_as_one_that_was_not(
    recipe, monkeypatch, examples, objectives, source, at
):
    train = {"train": {"backup_steps": 2}}
    if source == "shards":
        train["data"] = {"train": [str(examples)], "shuffle": 4}
    whole = load_recipe(recipe(objectives=objectives, **train), kind=PretrainRecipe)
    expected = pretrain(whole)
    again = load_recipe(recipe(objectives=objectives, output="again", **train), kind=PretrainRecipe)

    killed(again, at, monkeypatch)
    assert pretrain(again) == pytest.approx(expected, rel=1e-6)
    assert_equal_models(whole, again)


# One with another length, then one with larger batches too, then one that is deeper.
STAGES = [
    {"steps": 4, "length": 12, "epochs": 2},
    {"steps": 3, "length": 24},
    {"steps": 2, "batch_size": 6, "learning_rate": 1e-3},
    {"steps": 2, "layers": 2, "batch_size": 8},
]


@pytest.mark.full
@pytest.mark.parametrize("at", in_full([1, 2, 3, 4, 5, 6], [3]))
def test_a_run_in_stages_that_was_killed(recipe, monkeypatch, at):
    changes = {"train": {"steps": None, "epochs": 3, "backup_steps": 2, "batch_size": 4}}
    whole, again = (
        dataclasses.replace(
            load_recipe(recipe(output=name, **changes), kind=PretrainRecipe),
            stages=[Stage(**each) for each in STAGES],
        )
        for name in ("whole", "again")
    )
    seen, resumed = [], []
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, seen)
        expected = pretrain(whole)
    assert expected["steps"] == 11
    assert [rows for rows, _ in seen] == [4] * 7 + [6] * 2 + [8] * 2
    assert max(length for _, length in seen[:4]) <= 12 < min(length for _, length in seen[4:])
    rows = History(Path(whole.output) / "history.csv").rows
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4"]
    killed(again, at, monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, resumed)
        assert pretrain(again) == pytest.approx(expected, rel=1e-6)
    # Checkpoints are written every two steps and after each epoch.
    assert resumed == seen[{1: 2, 2: 4, 3: 6, 4: 7, 5: 9, 6: 11}[at] :]
    assert_equal_models(whole, again)


@pytest.mark.full
def test_stages_go_on_in_the_text(recipe, tiny):
    """With one length, the examples of a run in stages are those of one without; with another, the
    text begins about where the last stage ended."""
    made = load_recipe(recipe(data={"shuffle": 1}), kind=PretrainRecipe)
    tokenizer = load_tokenizer(tiny)
    data = _Data(made, tokenizer, objectives.build(made, tokenizer))

    def rows(stages, step, count):
        batches = data.batches(stages, step).take(count)
        ids = [ids for inputs, targets, _ in batches for ids in targets["originals"].numpy()]
        return [[*row[row != 0]] for row in ids]

    one = rows([Stage(steps=99)], 0, 9)
    ramp = [Stage(steps=3, batch_size=2), Stage(steps=2, batch_size=6), Stage(steps=5)]
    assert rows(ramp, 0, 3) + rows(ramp, 3, 2) + rows(ramp, 5, 3) == one[:30]
    assert rows(ramp, 4, 1) == one[12:18]
    assert rows([Stage(steps=2), Stage(steps=5)], 3, 1) == one[12:16]
    # Twice as long: half as many are left out.
    longer = rows([Stage(steps=99, length=48)], 0, 9)
    assert rows([Stage(steps=4), Stage(steps=4, length=48)], 5, 1) == longer[12:16]


@only_in("extended", "shards")
@pytest.mark.parametrize("source", in_full(["text", "shards"], ["shards"]))
def test_static_masks_by_recipe(recipe, examples, tiny, source):
    """`copies` with the shuffling that a recipe has unless it says otherwise."""
    data = {"train": [str(examples)]} if source == "shards" else {}
    file = recipe(objectives=BOTH, data=data, masking={"copies": 2})
    made = load_recipe(file, kind=PretrainRecipe)
    tokenizer = load_tokenizer(tiny)
    read = _Data(made, tokenizer, objectives.build(made, tokenizer))
    train = read.train(made.data.length)
    counts = (
        [train.count()] * 3
        if source == "shards"
        else [sum(1 for _ in train.examples(number, 2)) for number in range(3)]
    )
    found = []
    for inputs, targets, _ in read.batches([Stage(steps=99)], 0).take(-(-sum(counts) // 4)):
        ids, originals, pair = inputs["token_ids"], targets["originals"], targets["pair"]
        rows = zip(ids.numpy(), originals.numpy(), pair.numpy(), strict=True)
        found += [([*a[b > 0]], [*b[b > 0]], int(label)) for a, b, label in rows]
    ends = np.cumsum([0, *counts])
    first, second, third = (found[a:b] for a, b in itertools.pairwise(ends))
    assert sorted(first) == sorted(third) != sorted(second)
    assert first != third


@pytest.mark.full
def test_held_out_text_is_tokenized_once(recipe, monkeypatch):
    read = Counter()
    original = Corpus._formed

    def formed(self, seed):
        read[len(self.files)] += 1
        return original(self, seed)

    monkeypatch.setattr(Corpus, "_formed", formed)
    file = recipe(data={"train": ["a.txt", "b.txt"]})
    (file.parent / "b.txt").write_text(TEXT)
    monkeypatch.chdir(file.parent)
    pretrain(load_recipe(file, kind=PretrainRecipe))  # evaluates twice
    assert read[1] == 1


def killed(recipe, at, monkeypatch):
    """Trains until the given number of checkpoints is written."""
    written, write = [], Backup._write

    def once(self, metrics):
        write(self, metrics)
        written.append(metrics)
        if len(written) == at:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Backup, "_write", once)
        with pytest.raises(Killed):
            pretrain(recipe)


def assert_equal_models(*recipes):
    one, other = (load_file(f"{each.output}/model/model.safetensors") for each in recipes)
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, atol=1e-7, err_msg=name)


def watch(patch, found, optimizers=None):
    """Records the shape of each batch that is trained on, and the optimizers."""
    compute, compile = Learner.compute_loss, Learner.compile

    def compiled(self, *args, **kwargs):
        compile(self, *args, **kwargs)
        if optimizers is not None:
            optimizers.append(self.optimizer)

    def watched(self, x, *rest, training=True, **kwargs):
        if training:
            shape = tf.shape(x["token_ids"])
            tf.py_function(lambda each: found.append(tuple(each.numpy())), [shape], [])
        return compute(self, x, *rest, training=training, **kwargs)

    patch.setattr(Learner, "compute_loss", watched)
    patch.setattr(Learner, "compile", compiled)


@pytest.mark.full
@pytest.mark.parametrize("family", in_full(["roberta", "albert", "xlm_roberta"], ["roberta"]))
def test_tokenizers_of_other_kinds(recipe, tmp_path, family):
    """Byte-level BPE and SentencePiece, with and without offsets of the ids."""
    made = published.tokenizer(family)
    made.save(tmp_path / "vocabulary")
    sizes = dict(embedding_size=8) if family == "albert" else {}
    file = recipe(
        family, unit="word", model={"tokenizer": str(tmp_path / "vocabulary")}, overrides=sizes
    )
    metrics = pretrain(load_recipe(file, kind=PretrainRecipe))
    assert all(np.isfinite(value) for value in metrics.values())
    model = tmp_path / "run" / "model"
    stored = load_tokenizer(model)
    assert (
        stored.tokenize(["The good film."]).to_list() == made.tokenize(["The good film."]).to_list()
    )
    assert stored.special_ids == made.special_ids
    task = bf.MaskedLM.from_pretrained(model)
    assert len(task.fill(f"The {task.mask_token} film.")[0]) == 5


@pytest.mark.full
@pytest.mark.parametrize("policy", in_full(["mixed_bfloat16", "mixed_float16"], ["mixed_float16"]))
def test_a_killed_run_in_half_precision(recipe, monkeypatch, policy):
    """Steps that loss scaling leaves out of the optimizer's number are not repeated."""
    previous = keras.config.dtype_policy()
    kind = keras.optimizers.LossScaleOptimizer
    # Overflows in the first steps.
    monkeypatch.setattr(kind.__init__, "__defaults__", (2.0**20, 2000, None))
    keras.config.set_dtype_policy(policy)
    try:
        whole, again = (
            load_recipe(recipe(output=name, train={"backup_steps": 2}), kind=PretrainRecipe)
            for name in ("whole", "again")
        )
        seen, resumed, optimizers = [], [], []
        with pytest.MonkeyPatch.context() as patch:
            watch(patch, seen, optimizers)
            expected = pretrain(whole)
        if policy == "mixed_float16":
            assert 0 < int(optimizers[0].iterations) < 6
        killed(again, 3, monkeypatch)
        with pytest.MonkeyPatch.context() as patch:
            watch(patch, resumed, [])
            assert pretrain(again) == pytest.approx(expected, rel=1e-5)
        assert (len(seen), len(resumed)) == (6, 2)  # the third checkpoint is that of step 4
        assert_equal_models(whole, again)
    finally:
        keras.config.set_dtype_policy(previous)


REPLICAS = """
    import dataclasses
    import sys

    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from bertfam_tf.recipes import PretrainRecipe, load_recipe
    from bertfam_tf.recipes import pretrain

    recipe = load_recipe(sys.argv[1], kind=PretrainRecipe)
    one = pretrain(recipe)
    recipe = dataclasses.replace(recipe, output=recipe.output + "_of_two")
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        two = pretrain(recipe)
    print(one, two)
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-4, err_msg=name)
"""


@pytest.mark.full
def test_two_replicas_train_as_one(recipe):
    # Logits that differ clearly, so that rounding does not change which is the highest.
    quiet = dict(dropout=0.0, attention_dropout=0.0, initializer_range=0.5)
    file = recipe(objectives={"mlm": 1.0, "nsp": 1.0}, overrides=quiet)
    code = [sys.executable, "-c", textwrap.dedent(REPLICAS), str(file)]
    result = subprocess.run(code, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.extended
def test_errors(recipe):
    for options, message in (
        (dict(objectives={"mln": 1.0}), "Unknown objective 'mln'.* Known: mlm"),
        (dict(objectives={"nsp": 1.0, "sop": 1.0}), "either nsp or sop"),
        (dict(objectives={"nsp": 1.0}, format="doc_sentences"), "format must be segment_pairs or"),
        (dict(objectives={"sbo": 1.0}), "masking.unit must be span for sbo, got piece"),
        (dict(objectives={"clm": 1.0}), "The objective clm needs data.format: stream"),
        (dict(objectives={"rtd": 1.0, "mlm": 1.0}), "rtd trains its generator with"),
        (dict(objectives={"rtd": 50.0}), "bert has no rtd head"),
        (dict(family="xlm"), "xlm has the input language_ids: data.train must be a table of files"),
        (dict(objectives={"plm": 1.0}), "bert has no permutation_lm head, which the objective plm"),
        (
            dict(objectives={"plm": 1.0, "mlm": 1.0}),
            "plm predicts tokens that are not masked",
        ),
        (dict(masking={"rate": 2.0}), "rate must be from 0 to 1"),
        (dict(family="gpt2"), "gpt2 has no masked_lm head, which the objective mlm trains"),
        (dict(data={"train": ["nowhere.txt"]}), "There is no file nowhere.txt"),
        (
            dict(data={"format": "stream", "sentences": "line"}),
            "objectives must be clm for data.format stream",
        ),
        (dict(data={"length": 600}), "stages.*length must be at most the .* got 600"),
    ):
        with pytest.raises(ValueError, match=message):
            pretrain(load_recipe(recipe(**options), kind=PretrainRecipe))
    for options, message in (
        (
            dict(data={"format": "pages"}),
            "data.format must be one of stream, sentences, full_sentences",
        ),
        (dict(unit="letter"), "masking.unit must be one of piece, word, ngram, span"),
        (dict(train={"steps": 0}), "train.steps must be at least 1"),
        (dict(masking={"longest": 0}), "masking.longest must be at least 1, got 0"),
        (
            dict(unit="span", masking={"longest": 5}),
            "longest must be 3 or omitted unless masking.unit is ngram, got 5",
        ),
        (dict(data={"exponent": 2}), "data.exponent must be from 0 to 1, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            load_recipe(recipe(**options), kind=PretrainRecipe)
