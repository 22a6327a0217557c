"""Text of several languages and translations: batches, and ``bertfam pretrain`` with ``tlm``."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.corpora import Corpus, Format, Masking, TranslationPairs, shards
from bertfam_tf.corpora.languages import Languages, Translations
from bertfam_tf.recipes import pretrain, pretrained
from bertfam_tf.recipes.objectives import build
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.recipes.sentences import _Data
from bertfam_tf.text import load_tokenizer
from tests import published
from tests.selection import in_full, only_in

SMALL = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
FIRST = [f"the good film {'bad ' * (i % 4)}." for i in range(40)]
SECOND = [f"a plot {'dull ' * (i % 3)}!" for i in range(40)]


@pytest.fixture
def files(tmp_path):
    """Two files of translations, and the same as one with two columns."""
    for name, lines in (("en", FIRST), ("fr", SECOND)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    rows = [f"{a}\t{b}" for a, b in zip(FIRST, SECOND, strict=True)]
    (tmp_path / "both.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


@pytest.fixture
def tokenizer(tiny):
    return load_tokenizer(tiny)


@pytest.fixture
def translations(tokenizer):
    backbone = bf.build("xlm", "tiny", vocab_size=tokenizer.vocab_size, num_languages=2, **SMALL)
    pairs = TranslationPairs(backbone, tokenizer, 32)

    def make(*files, **options):
        return Translations(files, (0, 1), pairs, (tokenizer, tokenizer), **options)

    return make


def test_pairs_of_two_files_and_of_two_columns(files, translations):
    two = translations(files / "en", files / "fr", shuffle=1)
    expected = [(a.strip(), b.strip()) for a, b in zip(FIRST, SECOND, strict=True)]
    assert list(two.examples()) == expected
    one = translations(files / "both.tsv", shuffle=1)
    assert list(one.examples()) == expected
    shuffled = translations(files / "both.tsv", shuffle=8)
    orders = [list(shuffled.examples(number)) for number in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(expected)
    assert two.count() == 40


def test_pairs_with_an_empty_side_are_left_out(files, translations):
    (files / "fr").write_text("\n".join(["", *SECOND[1:]]) + "\n")
    assert translations(files / "en", files / "fr").count() == 39


def test_wrong_files(files, translations):
    (files / "short").write_text("one line\n")
    (files / "wide.tsv").write_text("a\tb\na\tb\tc\n")
    (files / "empty.tsv").write_text("a\t\n")
    (files / "bytes.tsv").write_bytes(b"a\t\xff\n")
    for names, message in (
        (("en", "short"), "equally many lines, but only one has a line 2"),
        (("wide.tsv",), "wide.tsv, line 2: expected a text and its translation .* got 3 columns"),
        (("empty.tsv",), "There are no translations in .*empty.tsv"),
        (("bytes.tsv",), "bytes.tsv must be UTF-8"),
    ):
        with pytest.raises(ValueError, match=message):
            list(translations(*(files / name for name in names)).examples())
    with pytest.raises(ValueError, match="two files or in one with two columns, got 3"):
        translations(files / "en", files / "fr", files / "en")


@pytest.fixture
def languages(files, tokenizer, translations):
    def make(**options):
        corpora = {i: Corpus([files / n], tokenizer, 32) for i, n in enumerate(("en", "fr"))}
        return Languages(corpora, [translations(files / "both.tsv")], **options)

    return make


@pytest.mark.extended
def test_a_pass_has_each_language_and_the_translations(languages, tokenizer):
    made = languages()
    batches = list(made.batches(8, Masking(tokenizer)).as_numpy_iterator())
    assert sum(len(inputs["token_ids"]) for inputs, _, _ in batches) == made.count()
    seen = []
    for inputs, targets, _ in batches:
        real = inputs["padding_mask"] > 0
        found = set(inputs["language_ids"][real])
        [translated] = set(targets["translated"])
        assert found == {0, 1} if translated else len(found) == 1
        assert (inputs["position_ids"][:, 0] == 0).all()
        if not translated:
            lengths = real.sum(1)
            assert (inputs["position_ids"].max(1) == lengths - 1).all()
        seen.append((translated, *sorted(found)))
    assert seen == sorted(seen)
    assert {(0, 0), (0, 1), (1, 0, 1)} == set(seen)


@pytest.mark.full
def test_texts_and_translations_take_turns(languages, tokenizer):
    """The same after any number of batches, so that a killed run resumes."""
    made = languages(seed=3)
    data = made.batches(4, Masking(tokenizer), passes=None)
    assert data.options().autotune.enabled is False
    first = list(data.take(10).as_numpy_iterator())
    assert [targets["translated"][0] for _, targets, _ in first] == [0, 1] * 5
    for one, other in zip(first[6:], data.skip(6).take(4).as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(one[0]["token_ids"], other[0]["token_ids"])


@pytest.mark.extended
def test_batches_of_tokens(files, tokenizer):
    """Each is of one language, and any number can be left out."""
    corpora = {i: Corpus([files / name], tokenizer, 32) for i, name in enumerate(("en", "fr"))}
    made, masking = Languages(corpora), Masking(tokenizer)
    data = made.batches(None, masking, batch_tokens=64, passes=None)
    first = list(data.take(8).as_numpy_iterator())
    assert all(0 < inputs["padding_mask"].sum() <= 64 for inputs, _, _ in first)
    later = made.batches(None, masking, batch_tokens=64, passes=None, start=5).take(3)
    for one, other in zip(first[5:], later.as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(one[0]["token_ids"], other[0]["token_ids"])
    whole = made.batches(None, masking, batch_tokens=64)
    assert made.count_batches(64) == sum(1 for _ in whole)


@pytest.mark.extended
@pytest.mark.parametrize("copies", in_full([1, 2, None], [2]))
def test_static_masks_of_languages_and_translations(languages, tokenizer, copies):
    """With the default shuffling, each language's and the pairs' masks repeat by themselves."""
    made = languages()
    streams = {}
    for inputs, targets, _ in made.batches(1, Masking(tokenizer), copies=copies, passes=None).take(
        900
    ):
        key = tuple(sorted({*inputs["language_ids"].numpy().flat}))
        row = (*inputs["token_ids"].numpy().flat, -1, *targets["originals"].numpy().flat)
        streams.setdefault(key, []).append(row)
    counts = {(0,): made.corpora[0], (1,): made.corpora[1], (0, 1): made.translations[0]}
    assert streams.keys() == counts.keys()
    for key, each in counts.items():
        number = each.count()
        passes = [streams[key][n * number : (n + 1) * number] for n in range(3)]
        assert len(passes[2]) == number
        first, second, third = map(sorted, passes)
        assert (first == second) == (copies == 1)
        assert (first == third) == (copies is not None)


# 360 sentences and 40: by default 9 ** 0.7 to 1.
@only_in("full", "0.0-0.5", "0.5-0.75", "1.0-0.9")
@pytest.mark.parametrize(
    ("exponent", "share"), [(1.0, 0.9), (0.5, 0.75), (0.0, 0.5), (None, 9**0.7 / (9**0.7 + 1))]
)
def test_languages_are_drawn_by_a_power_of_their_sizes(files, tokenizer, exponent, share):
    (files / "much").write_text("\n".join(FIRST * 9) + "\n")
    corpora = {i: Corpus([files / name], tokenizer, 32) for i, name in enumerate(("much", "fr"))}
    chosen = Languages(corpora) if exponent is None else Languages(corpora, exponent=exponent)
    choices = chosen._choices().take(2000)
    found = np.mean([choice == 0 for choice in choices.as_numpy_iterator()])
    assert found == pytest.approx(share, abs=0.03)


def test_a_language_without_text(files, tokenizer):
    (files / "blank").write_text("\n \n")
    corpora = {i: Corpus([files / name], tokenizer, 32) for i, name in enumerate(("fr", "blank"))}
    with pytest.raises(ValueError, match=r"There is no text in .*blank"):
        Languages(corpora).batches(4, Masking(tokenizer), passes=None)


@pytest.fixture
def recipe(tiny, files):
    def make(family="xlm", objectives=None, output="run", **changes):
        both = {"en-fr": [str(files / "en"), str(files / "fr")]}
        texts = {name: [str(files / name)] for name in ("en", "fr")}
        objectives = {"mlm": 1.0, "tlm": 1.0} if objectives is None else objectives
        pairs = both if "tlm" in objectives else {}
        values = {
            "output": str(files / output),
            "model": {
                "family": family, "size": "tiny", "tokenizer": str(tiny),
                "overrides": {**SMALL, "intermediate_size": 64},
            },
            "data": {
                "train": texts, "dev": texts, "length": 32, "format": "full_sentences",
                "train_translations": pairs, "dev_translations": pairs,
            },
            "objectives": objectives,
            "train": {"steps": 6, "epochs": 2, "batch_size": 4, "learning_rate": 1e-3},
        }  # fmt: skip
        for section, keys in changes.items():
            values[section] = {**values[section], **keys}
        file = files / "recipe.yaml"
        file.write_text(json.dumps(values))  # which is YAML
        return file

    return make


@pytest.mark.full
def test_a_checkpoint_from_translations(recipe, files, capfd):
    assert main(["pretrain", str(recipe())]) == 0
    metrics = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert {"loss", "masked_lm", "tlm", "steps"} <= metrics.keys()
    assert metrics["loss"] == pytest.approx(metrics["masked_lm"] + metrics["tlm"], rel=1e-5)
    model = files / "run" / "model"
    assert json.loads((model / "config.json").read_text())["lang2id"] == {"en": 0, "fr": 1}
    assert bf.load_backbone(model).config.num_languages == 2
    task = bf.MaskedLM.from_pretrained(model, language="fr")
    assert task.language_id == 1
    assert len(task.fill("The [MASK] film.")[0]) == 5


@pytest.mark.extended
def test_languages_in_this_package_s_format(recipe, tiny, tmp_path, caplog, capsys):
    """Hugging Face's XLM has four times as many units in its feed-forward as in its vectors."""
    made = load_recipe(recipe(model={"overrides": SMALL}), kind=PretrainRecipe)
    tokenizer = bf.load_tokenizer(tiny)
    languages = {"en": 0, "fr": 1}
    built = build(made, tokenizer)
    model = tmp_path / "model"
    model.mkdir()
    pretrained.write(model, built, tokenizer, length=32, languages=languages)
    assert "cannot represent intermediate_size = 16" in caplog.text
    task = bf.MaskedLM.from_pretrained(model, language="fr")
    assert task.language_id == 1
    assert len(task.fill("The [MASK] film.")[0]) == 5
    predict = ["predict", str(model), "The [MASK] film."]
    for language in ("fr", "1", "en"):
        assert main([*predict, "--language", language]) == 0
    french, number, english = capsys.readouterr().out.splitlines()
    assert french == number != english
    assert main(predict) == 2
    assert "choose the language of the texts, one of en, fr." in capsys.readouterr().err
    (tmp_path / "texts.txt").write_text("the film\na good plot\n")
    index = str(tmp_path / "index")
    command = ["index", str(model), "--input", str(tmp_path / "texts.txt"), "--output", index]
    assert main(command) == 2
    assert "choose the language of the texts, one of en, fr." in capsys.readouterr().err
    assert main([*command, "--language", "fr"]) == 0
    capsys.readouterr()
    for language in ("fr", "1", "en"):
        assert main(["search", str(model), index, "the film", "--language", language]) == 0
    french, number, english = map(json.loads, capsys.readouterr().out.splitlines())
    assert french == number != english
    assert french["results"][0]["score"] == pytest.approx(1, abs=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("objectives", [{"tlm": 1.0}, {"mlm": 1.0}])
def test_one_of_both(recipe, objectives):
    nothing = {"train": {"en": [], "fr": []}, "dev": {"en": [], "fr": []}}
    file = recipe(objectives=objectives, **({"data": nothing} if "tlm" in objectives else {}))
    metrics = pretrain(load_recipe(file, kind=PretrainRecipe))
    assert np.isfinite(metrics["loss"])


@pytest.mark.extended
def test_shards_of_languages(recipe, files, tokenizer):
    """They are read as the text is of which they were made, with translations of text files."""
    form, options = Format(tokenizer, 32, "full_sentences"), {"sentences": "line", "seed": 0}
    table = {}
    for name in ("en", "fr"):
        folder, size = files / f"shards_{name}", (files / name).stat().st_size
        units = shards.units_of([(str(files / name), size)], 300, "blank_line")
        job = shards.description(form, files=[], unit=300, documents="blank_line", **options)
        shards.begin(folder, job)
        for unit in units:
            shards.write_shard(folder, unit, form, documents="blank_line", **options)
        shards.finish(folder, job, units)
        table[name] = [str(folder)]
    made = load_recipe(recipe(data={"train": table, "dev": table}), kind=PretrainRecipe)
    text = load_recipe(recipe(), kind=PretrainRecipe)
    (choices, ids), expected = (
        (
            [int(x) for x in data.train(32)._choices().take(40)],
            [
                inputs["language_ids"].numpy().max(axis=1).tolist()
                for inputs, *_ in data.train(32).batches(4, data.pretraining.masking)
            ],
        )
        for data in (_Data(each, tokenizer, build(each, tokenizer)) for each in (made, text))
    )
    assert (choices, ids) == expected
    assert set(choices) == {0, 1, 2}
    assert np.isfinite(pretrain(made)["loss"])
    card = files / "shards_fr" / "card.json"
    content = json.loads(card.read_text())
    del content["counts"]["sentences"]
    card.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"shards_fr/card\.json is not a data card: .*sentences"):
        pretrain(load_recipe(recipe(output="b", data={"train": table}), kind=PretrainRecipe))


def test_pairs_of_codes_with_hyphens(recipe, files, tokenizer):
    texts = {code: [str(files / "en")] for code in ("pt", "en", "pt-BR")}
    pairs = {"en-pt-BR": [str(files / "en"), str(files / "fr")]}
    file = recipe(
        data={"train": texts, "dev": texts, "train_translations": pairs, "dev_translations": pairs}
    )
    backbone = bf.build("xlm", "tiny", vocab_size=tokenizer.vocab_size, num_languages=3, **SMALL)
    made = SimpleNamespace(backbone=backbone)
    data = _Data(load_recipe(file, kind=PretrainRecipe), tokenizer, made)
    assert [source.languages for source in data.train(32).translations] == [[1, 2]]


@pytest.mark.extended
def test_errors(recipe, files):
    en = [str(files / "en")]
    both = {"en-fr": [*en, str(files / "fr")]}
    for options, message in (
        (dict(family="bert"), "bert has no input position_ids, which the objective tlm needs"),
        (dict(objectives={"tlm": 1.0, "nsp": 1.0}), "tlm can only be combined with mlm"),
        (dict(objectives={"tlm": 1.0}), "must be empty for tlm without mlm"),
        (dict(data={"train": en, "dev": en}), "data.train must be a table .* for tlm, got a list"),
        (dict(data={"dev": en}), "data.train and data.dev must both be lists of files, or both"),
        (dict(data={"dev_translations": {}}), "dev_translations are required by tlm"),
        (dict(data={"train_translations": {"en-de": both["en-fr"]}}), "such as en-fr, got 'en-de'"),
        (dict(data={"dev": {"de": en}}), "Unknown language of data.train 'de'"),
        (
            dict(train={"batch_size": None, "batch_tokens": 99}),
            "batch_tokens must be null for translations",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            pretrain(load_recipe(recipe(**options), kind=PretrainRecipe))


@pytest.mark.extended
def test_each_language_is_split_by_its_rules(tmp_path):
    """Also beside its translation, where a tokenizer has rules for languages."""
    english = published.tokenizer("xlm")
    french = english.in_language("fr")
    text = "l'a it , not ?"
    assert english.tokenize(text).numpy().tolist() != french.tokenize(text).numpy().tolist()
    assert french.in_language("en") is english
    assert english.in_language("fr") is french
    made = english.from_config({**english.get_config(), "language": "fr", "prefixes": None})
    assert french.get_config() == made.get_config()
    offsets = [tokenizer.tokenize_with_offsets(text) for tokenizer in (french, made)]
    for mine, expected in zip(*offsets, strict=True):
        np.testing.assert_array_equal(mine, expected)
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{text}\n", "utf-8")
    shape = {**SMALL, "intermediate_size": 64, "vocab_size": english.vocab_size}
    pairs = TranslationPairs(bf.build("xlm", "tiny", num_languages=2, **shape), english, 64)
    paths = [tmp_path / "one", tmp_path / "two"]
    translations = Translations(paths, (0, 1), pairs, (english, french))
    ((inputs, targets, weights),) = translations.batches(1, Masking(english)).as_numpy_iterator()
    ids = inputs["token_ids"][0].copy()
    masked = targets["positions"][0][weights[0] > 0]
    ids[masked] = targets["token_ids"][0][weights[0] > 0]
    for number, tokenizer in enumerate((english, french)):
        own = ids[inputs["language_ids"][0] == number].tolist()
        assert str(tokenizer.tokenize(text).numpy().tolist())[1:-1] in str(own)
