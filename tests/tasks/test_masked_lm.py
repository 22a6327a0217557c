"""Masks: against the whole logits, what stands in the text, learning, and what is refused."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.export.runtime import load
from bertfam_tf.tasks import masked_lm
from bertfam_tf.text import load_tokenizer
from tests.selection import WIRINGS, in_full, only_in

TEXTS = ["the film was [MASK] good", "", "no mask", "[MASK]play[MASK] , It [MASK] !", "a[MASK]"]
slices = tf.data.Dataset.from_tensor_slices
COUNTS = [1, 0, 0, 3, 1]
FAMILIES = [name for name in bf.families() if "masked_lm" in registry.get(name).heads]


@pytest.fixture(scope="module")
def tokenizer(smallest):
    return load_tokenizer(smallest)


@pytest.fixture(scope="module")
def task(tokenizer):
    return _task("bert", tokenizer)


def _task(family, tokenizer, **options):
    shape = dict(vocab_size=70, num_layers=1, max_positions=64, num_languages=1)
    shape |= dict(dropout=0.0, attention_dropout=0.0)
    known = registry.get(family).config.__dataclass_fields__
    backbone = bf.build(family, "tiny", **{k: v for k, v in shape.items() if k in known})
    language = 0 if "language_ids" in backbone.input else None
    task = bf.MaskedLM(backbone, tokenizer, language_id=language, **options)
    for i, variable in enumerate(task.weights):
        variable.assign_add(np.random.default_rng(i).normal(0, 0.2, variable.shape))
    return task


def _expected(task, text):
    """Of each mask the likeliest ids and their probabilities, from the whole model's logits."""
    ids = task.tokenizer.special_ids
    tokens = [ids["cls"], *task.tokenizer.tokenize(text).numpy().tolist(), ids["sep"]]
    given = {
        "token_ids": np.array([tokens], "int32"),
        "padding_mask": np.ones((1, len(tokens)), "int32"),
        "language_ids": np.zeros((1, len(tokens)), "int32"),
    }
    logits = task.head(task.backbone(given, training=False), training=False)
    chances = tf.nn.softmax(logits).numpy()[0, :, : task.tokenizer.vocab_size]
    places = [i for i, token in enumerate(tokens) if token == ids["mask"]]
    return [[(i, chances[at, i]) for i in np.argsort(-chances[at])] for at in places]


def _check(task, texts, found, k=5):
    assert len(found) == len(texts)
    for text, of_text in zip(texts, found, strict=True):
        expected = _expected(task, text)
        assert len(of_text) == len(expected)
        for answers, likeliest in zip(of_text, expected, strict=True):
            assert len(answers) == k
            scores = [a["score"] for a in answers]
            np.testing.assert_allclose(scores, [p for _, p in likeliest[:k]], atol=2e-5)
            named = {task.tokenizer.id_to_token(int(i)): p for i, p in likeliest}
            for answer in answers:
                assert answer["score"] == pytest.approx(named[answer["token"]], abs=2e-5)


@only_in("full", "1")
@only_in("extended", "2")
@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_answers_are_those_of_the_whole_logits(task, batch_size):
    found = task.predict(TEXTS, batch_size=batch_size)
    assert list(map(len, found)) == COUNTS
    _check(task, TEXTS, found)


@pytest.mark.extended
def test_fill_is_predict(task):
    assert task.fill(TEXTS) == task.predict(TEXTS)
    first = task.fill(TEXTS[0], top_k=2)
    np.testing.assert_allclose(
        [a["score"] for a in first[0]], [a["score"] for a in task.predict(TEXTS)[0][0]][:2], 1e-5
    )
    assert task.fill("no mask") == []
    assert task.fill(slices(TEXTS), 5) == task.predict(TEXTS)


def test_what_a_filled_text_looks_like(task):
    """The rest of the text stays as it was typed."""
    found = task.fill("[MASK]play[MASK] , It [MASK] !", top_k=task.tokenizer.vocab_size)
    texts = [{a["token"]: a["text"] for a in of_mask} for of_mask in found]
    assert texts[0]["not"] == "notplay[MASK] , It [MASK] !"
    assert texts[1]["##ing"] == "[MASK]playing , It [MASK] !"
    assert texts[1]["."] == "[MASK]play. , It [MASK] !"
    assert texts[2]["##ly"] == "[MASK]play[MASK] , It ly !"
    assert texts[2]["[MASK]"] == "[MASK]play[MASK] , It [MASK] !"
    assert sum(a["score"] for a in found[0]) <= 1 + 1e-5


@pytest.mark.parametrize("family", in_full(FAMILIES, WIRINGS))
def test_every_family_with_the_head(family, tokenizer):
    task = _task(family, tokenizer)
    found = task.answer({"text": tf.constant(TEXTS)})
    assert found["tokens"].shape == found["scores"].shape == (5, 3, 5)
    assert found["count"].numpy().tolist() == COUNTS
    for i in (0, 3):
        likeliest = [[p for _, p in of_mask[:5]] for of_mask in _expected(task, TEXTS[i])]
        np.testing.assert_allclose(found["scores"][i, : COUNTS[i]], likeliest, atol=2e-5)
    logits = task(task.preprocess({"text": tf.constant(TEXTS[:1])}), training=False)
    assert logits["logits"].shape == (1, 7, task.backbone.config.vocab_size)


@pytest.mark.extended
def test_of_a_long_text_only_what_is_read(tokenizer):
    task = _task("bert", tokenizer, max_length=8)
    text = "a [MASK] " * 2000
    found = task.fill([text, "[MASK]"])
    assert list(map(len, found)) == [3, 1]
    assert found[0][2][0]["text"].startswith("a [MASK] a [MASK] a ")
    assert found[0][2][0]["text"].count("[MASK]") == 1999


@pytest.mark.extended
def test_texts_that_lose_their_beginnings(tokenizer):
    """The last masks are filled; they were written in place of the first ones."""
    config = tokenizer.get_config()
    layout = dataclasses.replace(tokenizer.layout, truncate_left=True)
    task = _task("bert", tokenizer.from_config({**config, "layout": layout}), max_length=6)
    text = "the [MASK] was very very good and [MASK] or [MASK]"
    found = task.fill(text)
    assert len(found) == 2
    words = [[each["token"] for each in of_mask] for of_mask in found]
    for i, of_mask in enumerate(found):
        for each in of_mask:
            parts = text.rsplit("[MASK]", 2)
            assert each["text"].startswith(f"{parts[0]}{'[MASK]' if i else ''}")
            assert each["text"].count("[MASK]") == 2
    assert words == [[each["token"] for each in m] for m in task.fill("and [MASK] or [MASK]")]


def test_hostile_texts(task):
    texts = [
        b"\xff [MASK] \xc3",
        "x" * 10_000 + " [MASK]",
        "🙂[MASK]日本語",
        "[ MASK ]",
        "[mask]",
        "\0",
    ]
    found = task.fill(texts, 2)
    assert list(map(len, found)) == [1, 1, 1, 0, 0, 0]
    assert found[0][0][0]["text"].startswith("\ufffd ")
    assert found[2][0][0]["text"].startswith("🙂")


@pytest.mark.full
def test_saves_and_exports(task, tmp_path):
    task.save(tmp_path / "saved")
    again = bf.load(tmp_path / "saved")
    assert again.top_k == 5
    assert again.fill(TEXTS) == task.fill(TEXTS)
    servable = load(task.export(tmp_path / "export", max_masks=2))
    found = servable.run("", {"text": np.array([t.encode() for t in TEXTS], object)})
    assert found["count"].tolist() == COUNTS
    for row, answers in enumerate(task.predict(TEXTS)):
        for mask in range(2):
            likeliest = answers[mask] if mask < len(answers) else [{"token": "", "score": 0}] * 5
            tokens = [token.decode() for token in found["tokens"][row, mask]]
            assert tokens == [a["token"] for a in likeliest]
            scores = [a["score"] for a in likeliest]
            np.testing.assert_allclose(found["scores"][row, mask], scores, atol=1e-5)
    none = servable.run("", {"text": np.array([b"no mask"], object)})
    assert none["tokens"].shape == none["scores"].shape == (1, 2, 5)
    with pytest.raises(ValueError, match="max_masks must be at least 1, got 0"):
        task.export(tmp_path / "export", max_masks=0)


DOMAIN = [f"the {noun} was {word} ." for noun, word in (
    ("film", "good"), ("movie", "bad"), ("story", "long"), ("plot", "great"),
)]  # fmt: skip


@pytest.mark.full
def test_fit_adapts_to_texts(tokenizer, tmp_path):
    keras.utils.set_random_seed(0)
    task = _task("bert", tokenizer)
    before = task.evaluate(DOMAIN, return_dict=True, verbose=0)
    assert before.keys() == {"loss", "perplexity", "accuracy"}
    assert before["perplexity"] == pytest.approx(np.exp(before["loss"]), rel=1e-5)
    # Masks of evaluate are always the same.
    assert task.evaluate(DOMAIN, return_dict=True, verbose=0) == before
    task.compile(keras.optimizers.Adam(3e-3))
    history = task.fit(DOMAIN * 8, epochs=20, batch_size=16, validation_data=DOMAIN, verbose=0)
    assert history.history["val_loss"][-1] < 0.5 * before["loss"]
    found = task.fill([text.replace(text.split()[3], "[MASK]") for text in DOMAIN], 1)
    assert [each[0][0]["token"] for each in found] == [text.split()[3] for text in DOMAIN]
    # A classifier starts from it.
    task.save_pretrained(tmp_path / "adapted")
    classifier = bf.TextClassifier.from_pretrained(tmp_path / "adapted", labels=["a", "b"])
    for one, other in zip(task.backbone.weights, classifier.backbone.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.extended
def test_what_fit_reads(tokenizer):
    task = _task("bert", tokenizer, max_length=8, mask_unit="word", mask_rate=0.4)
    long = "the film was good . " * 5
    batches = list(task.text_batches(slices([long, "a film"]), batch_size=2, training=True))
    [(inputs, targets, weights)] = batches
    # A long text is several windows, without special tokens among what is predicted.
    assert inputs["token_ids"].shape == (6, 8)
    assert (inputs["token_ids"].numpy() == tokenizer.mask_id).any()
    there = weights.numpy() > 0
    special = [i for role, i in tokenizer.special_ids.items() if role != "unk"]
    assert not np.isin(targets["token_ids"].numpy()[there], special).any()
    words = task.text_batches(slices([long] * 40), batch_size=40, training=True)
    first, second = ([batch[0]["token_ids"].numpy() for batch in words] for _ in range(2))
    assert any((a != b).any() for a, b in zip(first, second, strict=True))  # drawn in each epoch
    share = [
        batch[2].numpy().sum() / (batch[0]["padding_mask"].numpy()[:, 1:-1].sum())
        for batch in words
    ]
    assert np.mean(share) == pytest.approx(0.4, abs=0.1)
    with pytest.raises(ValueError, match="is trained on texts; y and sample_weight must be None"):
        task.fit([long], ["label"], verbose=0)
    assert task.count_tokens({"text": tf.constant([long, "a film"])}).numpy().tolist() == [35, 4]


@pytest.mark.parametrize("top_k", [0, 10_000, 2.0])
def test_other_numbers_of_tokens_are_refused(task, top_k):
    with pytest.raises(ValueError, match=f"top_k must be an integer from 1 to 64, got {top_k}"):
        task.fill(TEXTS, top_k)


def test_other_data_is_refused(task, tokenizer):
    assert task.fill([]) == []
    with pytest.raises(ValueError, match="takes single texts"):
        task.predict((TEXTS, TEXTS))
    with pytest.raises(ValueError, match="masked_lm"):
        bf.MaskedLM(bf.build("gpt2", "tiny"), tokenizer)
    options = tokenizer.get_config()
    deaf = type(tokenizer).from_config({**options, "special_tokens_in_text": False})
    with pytest.raises(ValueError, match="must have special_tokens_in_text=True"):
        bf.MaskedLM(task.backbone, deaf)
    without = type(tokenizer).from_config({**options, "mask_token": None})
    with pytest.raises(ValueError, match="has no mask_token"):
        bf.MaskedLM(task.backbone, without)


def test_pseudo_log_likelihoods(task, monkeypatch):
    texts = ["the film was good", "", "It [MASK] well", "a"]
    expected = []
    for text in texts:
        ids = task.tokenizer.special_ids
        tokens = [ids["cls"], *task.tokenizer.tokenize(text).numpy().tolist(), ids["sep"]]
        total = 0.0
        for place in range(1, len(tokens) - 1):
            masked = np.array([tokens], "int32")
            masked[0, place] = ids["mask"]
            inputs = {"token_ids": masked, "padding_mask": np.ones_like(masked)}
            logits = task.head(task.backbone(inputs, training=False), training=False)
            total += float(tf.nn.log_softmax(logits)[0, place, tokens[place]])
        expected.append(total)
    found = task.log_likelihood(texts)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found[1] == 0
    assert found.dtype == np.float32
    # Several forward passes for one batch.
    monkeypatch.setattr(masked_lm, "_TOKENS", 20)
    task.forget_graphs()
    np.testing.assert_allclose(task.log_likelihood(texts), found, rtol=1e-5)
    task.forget_graphs()
