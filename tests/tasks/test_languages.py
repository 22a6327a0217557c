"""Tasks on XLM, whose texts have a language."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.checkpoints import Checkpoint, convert
from bertfam_tf.cli import main
from bertfam_tf.metrics import unit_length
from bertfam_tf.recipes import evaluate, run
from bertfam_tf.recipes.directory import MODEL
from bertfam_tf.recipes.reading import load_recipe
from tests import published
from tests.selection import only_in

GOLDEN = Path(__file__).parent.parent / "goldens" / "xlm" / "heads" / "sequence"
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
PIECES = [*SPECIAL, *"abcdefgh", "das</w>"]
TEXTS = ["das h a b", "das"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("xlm") / "checkpoint"
    shutil.copytree(GOLDEN, directory)
    config = json.loads((directory / "config.json").read_text())
    config["lang2id"] = {"de": 2, "en": 0, "fr": 1}
    (directory / "config.json").write_text(json.dumps(config))
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version\nd a\nda s</w>\n")
    return directory


def _scores(task, language_id):
    inputs = task.preprocess({"text": np.array(TEXTS, object)})
    inputs["language_ids"] = tf.fill(tf.shape(inputs["token_ids"]), language_id)
    return task.postprocess(task(inputs))["scores"]


@pytest.mark.full
@pytest.mark.parametrize(("language", "number"), [(None, 0), ("en", 0), ("de", 2)])
def test_each_token_has_the_language(checkpoint, tmp_path, language, number):
    task = bf.TextClassifier.from_pretrained(checkpoint, language=language)
    assert task.language_id == number
    found = [answer["scores"] for answer in task.predict(TEXTS)]
    np.testing.assert_allclose(found, _scores(task, number), atol=1e-6)
    assert np.abs(found - _scores(task, 1)).max() > 1e-3
    task.save(tmp_path / "task")
    again = [answer["scores"] for answer in bf.load(tmp_path / "task").predict(TEXTS)]
    np.testing.assert_array_equal(again, found)


@pytest.mark.full
def test_embeddings_too(checkpoint):
    german = bf.TextEmbedder.from_pretrained(checkpoint, language="de").predict(TEXTS)
    english = bf.TextEmbedder.from_pretrained(checkpoint, language="en").predict(TEXTS)
    assert np.abs(german - english).max() > 1e-3


@pytest.mark.extended
def test_commands_of_search(checkpoint, tmp_path, capsys):
    """Documents in one language and queries in another."""
    (tmp_path / "texts.txt").write_text("das h a b\nh a\n")
    task = bf.TextEmbedder.from_pretrained(checkpoint)
    task.save(tmp_path / "task")
    model, index = str(tmp_path / "task"), str(tmp_path / "index")
    files = ["--input", str(tmp_path / "texts.txt"), "--output", index]
    assert main(["index", model, *files, "--language", "de"]) == 0
    assert main(["search", model, index, "das h a b", "--language", "fr"]) == 0
    best = json.loads(capsys.readouterr().out.splitlines()[-1])["results"][0]
    task.language = "de"
    documents = unit_length(task.predict(["das h a b", "h a"]))
    task.language = "fr"
    query = unit_length(task.predict(["das h a b"]))[0]
    assert best["score"] == pytest.approx(max(documents @ query), abs=1e-5)


@pytest.mark.extended
def test_a_language_that_is_not_there(checkpoint, smallest):
    with pytest.raises(ValueError, match=r"Unknown language 'es'\."):
        bf.TextClassifier.from_pretrained(checkpoint, language="es")
    with pytest.raises(ValueError, match="names no languages to choose 'de' from"):
        bf.TextClassifier.from_pretrained(smallest, language="de")
    task = bf.TextClassifier.from_pretrained(checkpoint)
    for number in (None, 3, -1):
        with pytest.raises(ValueError, match=f"language_id must be from 0 to 2, got {number}"):
            bf.TextClassifier(task.backbone, task.tokenizer, ["a", "b"], language_id=number)
    task = bf.TextClassifier.from_pretrained(smallest)
    with pytest.raises(ValueError, match="has no language embeddings"):
        bf.TextClassifier(task.backbone, task.tokenizer, ["a", "b"], language_id=0)
    with pytest.raises(ValueError, match=r"language must be None, got 'de'\."):
        task.predict(TEXTS, language="de")
    with pytest.raises(ValueError, match=r"Features must be 'text'.*got \['language', 'text'\]"):
        task.predict({"text": TEXTS, "language": ["de", "fr"]})


def test_convert_keeps_the_languages(checkpoint, tmp_path):
    convert(checkpoint, tmp_path / "out")
    assert Checkpoint(tmp_path / "out").languages == {"de": 2, "en": 0, "fr": 1}


# Other languages than the one of training ---------------------------------------------------------

CODES = {"en": 0, "de": 2, "fr": 1}
# Moses' rules for these differ between the languages.
MOSES = ["l'a the z.B. good , not ?", "the cast 9,000 of l'it", "bad z.B. l'o"]


def _task(name="TextClassifier", tokenizer="xlm", **options):
    """A task on an XLM of three languages, whose embeddings matter; trained in English."""
    made = published.tokenizer(tokenizer)
    shape = dict(hidden_size=16, intermediate_size=64, num_heads=2, num_layers=1)
    backbone = bf.build("xlm", "tiny", vocab_size=made.vocab_size, num_languages=3, **shape)
    if name in ("TextClassifier", "TokenTagger"):
        options |= {"labels" if name == "TextClassifier" else "tags": ["O", "B-A"]}
    options = {"language_id": 0, "languages": CODES, **options}
    task = getattr(bf, name)(backbone, made, **options)
    for i, variable in enumerate(task.weights):
        variable.assign(np.random.default_rng(i).normal(0, 0.5, variable.shape))
    return task


def _of(answers):
    return np.array([answer["scores"] for answer in answers])


@pytest.fixture(scope="module")
def classifier():
    return _task()


@pytest.fixture(scope="module")
def answers(classifier):
    """The scores of each language, which differ."""
    found = {code: _of(classifier.predict(MOSES, language=code)) for code in CODES}
    assert np.abs(found["de"] - found["fr"]).max() > 1e-3
    assert np.abs(found["de"] - found["en"]).max() > 1e-3
    return found


@pytest.mark.extended
def test_a_language_for_each_call(classifier, answers):
    np.testing.assert_array_equal(_of(classifier.predict(MOSES)), answers["en"])
    np.testing.assert_array_equal(_of(classifier.predict(MOSES, language=2)), answers["de"])
    # As with a tokenizer that was made for the language.
    tokenizer = classifier.tokenizer
    german = tokenizer.from_config({**tokenizer.get_config(), "language": "de", "prefixes": None})
    inputs = bf.TextClassifier(classifier.backbone, german, ["O", "B-A"], language_id=2).preprocess(
        {"text": tf.constant(MOSES)}
    )
    scores = classifier.postprocess(classifier(inputs))["scores"]
    np.testing.assert_allclose(scores, answers["de"], atol=1e-6)
    with pytest.raises(ValueError, match=r"Unknown language 'es'\. .*Known: de, en, fr"):
        classifier.predict(MOSES, language="es")
    with pytest.raises(ValueError, match=r"one of en, de, fr, or an id from 0 to 2, got 3"):
        classifier.predict(MOSES, language=3)


@pytest.mark.extended
def test_a_language_for_each_text(classifier, answers):
    mixed = {"text": MOSES, "language": ["fr", "de", "en"]}
    expected = [answers[code][i] for i, code in enumerate(mixed["language"])]
    np.testing.assert_allclose(_of(classifier.predict(mixed)), expected, atol=1e-6)
    frame = pytest.importorskip("pandas").DataFrame(mixed)
    np.testing.assert_allclose(_of(classifier.predict(frame)), expected, atol=1e-6)
    with pytest.raises(ValueError, match="The language 'es' is not one of: en, de, fr"):
        classifier.predict({"text": MOSES, "language": ["fr", "es", "en"]})
    with pytest.raises(ValueError, match="Either language or the column 'language'"):
        classifier.predict(mixed, language="de")


@pytest.mark.full
def test_evaluate_and_fit_read_the_language(classifier, answers):
    labels = [0, 1, 1]

    def loss(scores):
        return -np.log(scores[range(3), labels]).mean()

    for code in CODES:
        found = classifier.evaluate(MOSES, labels, language=code, return_dict=True, verbose=0)
        np.testing.assert_allclose(found["loss"], loss(answers[code]), rtol=1e-4)
    mixed = {"text": MOSES, "language": ["fr", "de", "en"]}
    scores = np.array([answers[code][i] for i, code in enumerate(mixed["language"])])
    found = classifier.evaluate(mixed, labels, return_dict=True, verbose=0)
    np.testing.assert_allclose(found["loss"], loss(scores), rtol=1e-4)
    task = _task()
    table = next(w for w in task.weights if "language_embedding" in w.path)
    before = table.numpy()
    task.fit({"text": MOSES, "language": ["fr", "fr", "en"]}, labels, verbose=0)
    changed = np.abs(table.numpy() - before).max(axis=1) > 1e-6
    assert changed.tolist() == [True, True, False]


@pytest.mark.extended
def test_the_language_can_be_set_and_is_kept(answers, tmp_path):
    task = _task()
    assert task.language == "en"
    task.predict(MOSES)  # a traced graph must not remain
    task.language = "de"
    assert (task.language, task.language_id) == ("de", 2)
    np.testing.assert_array_equal(_of(task.predict(MOSES)), answers["de"])
    task.save(tmp_path / "saved")
    loaded = bf.load(tmp_path / "saved")
    assert (loaded.language, loaded.tokenizer.get_config()["language"]) == ("de", "de")
    for language in (None, "fr"):
        started = bf.TextClassifier.from_pretrained(tmp_path / "saved", language=language)
        assert started.language == (language or "de")
    for code in CODES:
        np.testing.assert_allclose(_of(loaded.predict(MOSES, language=code)), answers[code])
    with pytest.raises(ValueError, match="Unknown language 'es'"):
        task.language = "es"
    assert task.language == "de"


@pytest.mark.extended
@only_in("full", "bert")
@pytest.mark.parametrize("tokenizer", ["xlm", "bert"])
def test_save_pretrained_writes_the_languages(tokenizer, tmp_path):
    task = _task(tokenizer=tokenizer)
    task.language = "de"
    task.save_pretrained(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["lang2id"], config["lang_id"], config["n_langs"]) == (CODES, 2, 3)
    back = bf.TextClassifier.from_pretrained(tmp_path / "out", max_length=task.max_length)
    assert (back.language, back.class_names) == ("de", ["O", "B-A"])
    for code in CODES:
        expected = _of(task.predict(MOSES, language=code))
        np.testing.assert_allclose(_of(back.predict(MOSES, language=code)), expected, atol=1e-6)


@pytest.mark.extended
def test_an_export_answers_in_each_language(classifier, answers, tmp_path):
    served = tf.saved_model.load(str(classifier.export(tmp_path))).signatures
    scores = served["serving_default"](text=tf.constant(MOSES))["scores"]
    np.testing.assert_allclose(scores, answers["en"], atol=1e-6)
    for code in CODES:
        languages = tf.constant([code] * 3)
        found = served["in_language"](text=tf.constant(MOSES), language=languages)
        np.testing.assert_allclose(found["scores"], answers[code], atol=1e-6)
        assert found["label"].shape == [3]
    mixed = ["fr", "de", "en"]
    found = served["in_language"](text=tf.constant(MOSES), language=tf.constant(mixed))
    expected = [answers[code][i] for i, code in enumerate(mixed)]
    np.testing.assert_allclose(found["scores"], expected, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'es.*is not one of: en, de, fr"):
        served["in_language"](text=tf.constant(MOSES), language=tf.constant(["fr", "es", "en"]))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("TokenTagger", MOSES),
        ("TextEmbedder", MOSES),
        ("MaskedLM", ["a <special1> l'a", "z.B. <special1>", "<special1> it"]),
        ("SpanQA", {"question": MOSES, "context": MOSES[::-1]}),
    ],
)
def test_every_kind_of_task(name, given, tmp_path):
    """A text gets the same answer with its language in a column, as an argument and set."""
    task = _task(name)
    given = given if isinstance(given, dict) else {"text": given}
    codes = ["fr", "de", "en"]
    mixed = task.predict({**given, "language": codes})
    for i, code in enumerate(codes):
        alone = task.predict(given, language=code)
        tf.nest.map_structure(_same, mixed[i], alone[i])
    assert repr(task.predict(given, language="de")) != repr(task.predict(given, language="fr"))
    served = tf.saved_model.load(str(task.export(tmp_path))).signatures["in_language"]
    assert set(served.structured_input_signature[1]) == {*given, "language"}


def _same(found, expected):
    if isinstance(expected, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.full
def test_a_recipe_is_scored_in_other_languages(tmp_path):
    """Trained in English; ``metrics.json`` has the metrics of the other languages."""
    task = _task()
    task.save_pretrained(tmp_path / "pretrained")
    rows = [f"{text}\t{label}" for text, label in zip(MOSES, ("O", "B-A", "O"), strict=True)]
    (tmp_path / "en.tsv").write_text("\n".join(["text\tlabel", *rows * 2]) + "\n")
    (tmp_path / "de.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    files = {code: str(tmp_path / "de.tsv") for code in ("de", "fr")}
    recipe = f"""
output: {tmp_path / "run"}
model: {{path: {tmp_path / "pretrained"}}}
data:
  train: {tmp_path / "en.tsv"}
  dev: {tmp_path / "en.tsv"}
  dev_languages: {json.dumps(files)}
train: {{epochs: 1, batch_size: 3}}
"""
    (tmp_path / "recipe.yaml").write_text(recipe)
    changed = [f"data.dev_languages={{es: {tmp_path / 'de.tsv'}}}", f"output={tmp_path / 'bad'}"]
    bad = load_recipe(tmp_path / "recipe.yaml", changed)
    with pytest.raises(ValueError, match="Unknown language 'es'"):
        run(bad)
    metrics = run(load_recipe(tmp_path / "recipe.yaml"))
    expected = {"loss", "accuracy", "de_loss", "de_accuracy", "fr_loss", "fr_accuracy"}
    assert metrics.keys() == expected
    assert metrics == json.loads((tmp_path / "run" / "metrics.json").read_text())
    task = bf.load(tmp_path / "run" / MODEL)
    rows = (MOSES, ["O", "B-A", "O"])
    for code in ("de", "fr"):
        found = task.evaluate(*rows, language=code, return_dict=True, verbose=0)
        np.testing.assert_allclose(metrics[f"{code}_loss"], found["loss"], rtol=1e-5)
    assert metrics["de_loss"] != metrics["fr_loss"]
    overrides = [f"data.dev={tmp_path / 'de.tsv'}"]
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml", overrides)
    found = evaluate(task, recipe, "dev", "de")
    np.testing.assert_allclose(found["loss"], metrics["de_loss"], rtol=1e-5)
    assert "fr_loss" not in found


@pytest.mark.extended
def test_xnli_from_the_recipe_to_one_export(tmp_path, capsys):
    """Trained in English by configs/xlm/xnli.yaml, scored in the others by the same command.

    The hypothesis has a letter for its label, the same in each language.
    """
    languages = ("en", "fr", "de", "es", "zh", "ar")
    codes = {code: number for number, code in enumerate(languages)}
    labels = {"x": "entailment", "y": "neutral", "z": "contradiction"}
    made = published.tokenizer("xlm")
    shape = dict(hidden_size=32, intermediate_size=128, num_heads=2, num_layers=1, dropout=0.0)
    backbone = bf.build("xlm", "tiny", vocab_size=made.vocab_size, num_languages=6, **shape)
    options = {"language_id": 0, "languages": codes, "pair": True}
    untrained = bf.TextClassifier(backbone, made, list(labels.values()), **options)
    untrained.save_pretrained(tmp_path / "pretrained")
    draw = np.random.default_rng(0)

    def write(name, count):
        rows = []
        for number in range(count):
            words = [" ".join(draw.choice(list("abcdefgh"), 3)) for _ in range(2)]
            letter = "xyz"[number % 3]
            rows.append(f"{words[0]}\t{words[1]} {letter}\t{labels[letter]}\n")
        (tmp_path / f"{name}.tsv").write_text("".join(rows))
        return str(tmp_path / f"{name}.tsv")

    dev = {code: write(f"dev.{code}", 24) for code in languages[1:]}
    changed = {
        "output": tmp_path / "run",
        "model.path": tmp_path / "pretrained",
        "model.max_length": 24,
        "data.train": write("train.en", 96),
        "data.dev": write("dev.en", 24),
        "data.dev_languages": json.dumps(dev),
        "train.epochs": 8,
        "train.batch_size": 8,
        "train.learning_rate": 0.01,
    }
    recipe = str(Path(__file__).parents[2] / "configs" / "xlm" / "xnli.yaml")
    assert main(["train", recipe, *(f"{key}={value}" for key, value in changed.items())]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = {"en": metrics["accuracy"]} | {c: metrics[f"{c}_accuracy"] for c in languages[1:]}
    with capsys.disabled():
        print("\naccuracy, chance 0.333:", {code: round(x, 3) for code, x in found.items()})
    assert min(found.values()) > 0.6

    assert main(["export", str(tmp_path / "run"), str(tmp_path / "served")]) == 0
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["in_language"]
    task = bf.load(tmp_path / "run" / MODEL)
    texts = {"text": ["a b", "c d"], "text_pair": ["a h x", "b z"]}
    answers = {}
    for code in languages:
        inputs = {name: tf.constant(column) for name, column in texts.items()}
        scores = served(language=tf.constant([code] * 2), **inputs)["scores"].numpy()
        expected = [each["scores"] for each in task.predict(texts, language=code)]
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        answers[code] = scores
    assert len({scores.tobytes() for scores in answers.values()}) == len(languages)
