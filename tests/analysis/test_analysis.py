"""Attention, heads, pruning and attributions on small models."""

import json

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import analysis, registry
from bertfam_tf.analysis.heads import attentions
from bertfam_tf.analysis.tokens import packed_example
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.sources import CheckpointError
from bertfam_tf.text import CharacterTokenizer, WordPieceTokenizer
from bertfam_tf.training import tuning
from tests import published
from tests.selection import only_in
from tests.test_families import _build, _inputs

TEXTS = ["a good film", "bad movie", "it is", "very dull plot"]
LABELS = ["neutral", "negative", "positive", "negative"]


@pytest.fixture(scope="module")
def classifier(tiny):
    """With noise: at its start, attention is nearly uniform."""
    return _noisy(bf.TextClassifier.from_pretrained(tiny))


def _noisy(task, scale=0.3):
    draw = np.random.default_rng(0)
    for weight in task.weights:
        if "seed" not in weight.path:
            weight.assign(weight.numpy() + draw.normal(0, scale, weight.shape))
    return task


def _scores(task, texts=TEXTS):
    return np.stack([each["scores"] for each in task.predict(texts)])


@pytest.mark.extended
def test_attention(classifier):
    maps = analysis.attention_maps(classifier, "A good film, isn't it?")
    assert maps.tokens[0] == "[CLS]"
    assert maps.tokens[-1] == "[SEP]"
    for each in maps.layers:
        assert each.shape[1:] == (len(maps.tokens),) * 2
        np.testing.assert_allclose(each.sum(axis=-1), 1, rtol=1e-5)
    assert [each.shape for each in maps.to_special()] == [(len(a), 2) for a in maps.layers]
    np.testing.assert_allclose(maps.rollout().sum(axis=-1), 1, rtol=1e-5)
    one, two = maps.example.words[1].tokens, maps.example.words[2].tokens
    expected = maps.layers[0][0][np.ix_(one, two)].sum(-1).mean()
    np.testing.assert_allclose(maps.between(one, two)[0][0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A good film, isn't it?", ["A", "good", "film", ",", "isn", "'", "t", "it", "?"]),
        ("unbelievably", ["unbelievably"]),
        ("日本語", ["日", "本", "語"]),
        ("naïve 🙂 5.5", ["naïve", "🙂", "5", ".", "5"]),
        ("a\ud800film", ["a", "?", "film"]),
        ("", []),
    ],
)
def test_words(classifier, text, words):
    found = analysis.attention_maps(classifier, text).example
    assert [word.text for word in found.words] == words
    for word in found.words:
        assert text.encode("utf-8", "replace")[word.start : word.end].decode().strip() == word.text
    covered = [token for word in found.words for token in word.tokens]
    assert covered == list(range(1, len(found.names) - 1))


def test_words_after_a_prompt(smallest):
    prompts = {"q": "the film: "}
    task = bf.TextEmbedder.from_pretrained(smallest, prompts=prompts, default_prompt="q")
    words = packed_example(task, {"text": "Good film, é"}).words
    places = [(word.text, word.feature, word.start, word.end) for word in words]
    assert places == [
        *(("the", "prompt", 0, 3), ("film", "prompt", 4, 8), (":", "prompt", 8, 9)),
        *(("Good", "text", 0, 4), ("film", "text", 5, 9), (",", "text", 9, 10)),
        ("é", "text", 11, 13),
    ]


@pytest.mark.extended
@pytest.mark.parametrize("strip_accents", [False, True])
def test_words_of_many_scripts(strip_accents):
    """With accents, vowel signs, and joiners, which BERT's tokenizer leaves out."""
    text = "लिखा है। العَرَبِيَّة ไม่มี 분석합니다 e\u0301te\u0301 می\u200cخواهم 日本"
    characters = sorted({*text} - {" "})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *characters, *(f"##{c}" for c in characters)]
    tokenizer = WordPieceTokenizer(pieces, lower_case=False, strip_accents=strip_accents)
    backbone = bf.models.build("bert", "tiny", vocab_size=len(pieces))
    task = bf.TextClassifier(backbone, tokenizer, ["a", "b"], max_length=64)
    words = [word.text for word in packed_example(task, {"text": text}).words]
    expected = text.replace("।", " ।").replace("本", " 本").split()
    assert len(words) == len(expected)
    # An accent that is left out may be missing at a word's end.
    assert all(map(str.startswith, expected, words))
    assert strip_accents or words == expected


@pytest.mark.extended
@pytest.mark.parametrize("padding", ["max_length", (16, 24)])
def test_padding_is_left_out(smallest, padding):
    """Nothing attends to it, so it is no special token, and has no share in what is expected."""
    plain, padded = (
        bf.TextClassifier.from_pretrained(smallest, padding=each) for each in ("longest", padding)
    )
    padded.set_weights(plain.get_weights())
    text = "A good film, isn't it?"
    first, second = (analysis.attention_maps(task, text) for task in (plain, padded))
    assert second.tokens == first.tokens
    assert second.example.words == first.example.words
    assert analysis.patterns(second) == analysis.patterns(first)
    for ours, theirs in zip(first.layers, second.layers, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    ours, theirs = (analysis.explain(task, text, "negative").tokens for task in (plain, padded))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.extended
def test_heads_are_switched_off_and_taken_out(classifier):
    """The same answers; with fewer weights, which are saved and exported as any others."""
    before = _scores(classifier)
    heads = {0: [1], 1: [0]}
    with analysis.without_heads(classifier.backbone, heads):
        without = _scores(classifier)
    np.testing.assert_array_equal(_scores(classifier), before)
    assert np.abs(without - before).max() > 1e-3
    pruned = analysis.prune(classifier, heads)
    np.testing.assert_allclose(_scores(pruned), without, atol=1e-5)
    counts = [each.num_heads for each in attentions(classifier.backbone)]
    size = attentions(classifier.backbone)[0].head_size
    width = classifier.backbone.config.hidden_size
    assert pruned.backbone.config.heads_per_layer == (counts[0] - 1, counts[1] - 1, *counts[2:])
    fewer = 2 * (4 * size * width + 3 * size)
    assert pruned.count_params() == classifier.count_params() - fewer


@pytest.mark.full
def test_pruned_models_are_stored(classifier, tmp_path):
    found = analysis.importance(classifier, TEXTS, LABELS, verbose=False)
    units = classifier.backbone.config.intermediate_size // 2
    pruned = analysis.prune(classifier, {0: [0]}, units, importance=found)
    assert pruned.backbone.config.intermediate_size == units
    pruned.save(tmp_path / "saved")
    np.testing.assert_array_equal(_scores(bf.load(tmp_path / "saved")), _scores(pruned))
    pruned.save_pretrained(tmp_path / "published")
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    heads = classifier.backbone.config.num_heads
    assert config["pruned_heads"] == {"0": [heads - 1]}
    again = bf.TextClassifier.from_pretrained(tmp_path / "published")
    np.testing.assert_allclose(_scores(again), _scores(pruned), atol=1e-6)
    for wrong in ({"9": [0]}, {"0": [99]}, [1], {"0": 1}):
        file = tmp_path / "published" / "config.json"
        file.write_text(json.dumps({**config, "pruned_heads": wrong}))
        with pytest.raises(CheckpointError, match="pruned_heads must be lists of heads by layer"):
            bf.load_backbone(tmp_path / "published")
    assert pruned.export(tmp_path / "export").is_dir()


@pytest.mark.full
def test_units_are_those_that_matter(tiny):
    """A unit whose outgoing weights are 0 is taken out first, and changes nothing."""
    task = _noisy(bf.TextClassifier.from_pretrained(tiny))
    for each in analysis.heads.feed_forwards(task.backbone):
        kernel = each.output_dense._kernel
        values = kernel.numpy()
        values[3] = 0
        kernel.assign(values)
    found = analysis.importance(task, TEXTS, LABELS, verbose=False)
    assert all(row[3] == 0 and (np.delete(row, 3) > 0).any() for row in found.units)
    units = task.backbone.config.intermediate_size - 1
    pruned = analysis.prune(task, units=units, importance=found)
    np.testing.assert_allclose(_scores(pruned), _scores(task), atol=1e-5)


@pytest.mark.full
def test_importance_is_a_gradient(classifier):
    """Of a factor on a head, by finite differences of the loss."""
    found = analysis.importance(classifier, TEXTS[:1], LABELS[:1], verbose=False)
    attention = attentions(classifier.backbone)[1]
    kernel, size = attention.output_dense._kernel, attention.head_size
    before, losses = kernel.numpy(), []
    for factor in (1.01, 0.99):
        values = before.copy()
        values[size : 2 * size] *= factor
        kernel.assign(values)
        result = classifier.evaluate(TEXTS[:1], LABELS[:1], verbose=0, return_dict=True)
        losses.append(result["loss"])
    kernel.assign(before)
    np.testing.assert_allclose(found.heads[1][1], abs(losses[0] - losses[1]) / 0.02, rtol=0.02)


@pytest.mark.extended
def test_ablation(classifier, tmp_path):
    def score():
        return float(_scores(classifier)[0, 0])

    found = analysis.ablation(classifier.backbone, score, verbose=False)
    with analysis.without_heads(classifier.backbone, {1: [0]}):
        np.testing.assert_allclose(found.heads[1][0], score() - found.score, atol=1e-7)
    every = range(attentions(classifier.backbone)[0].num_heads)
    with analysis.without_heads(classifier.backbone, {0: every}):
        np.testing.assert_allclose(found.layers[0], score() - found.score, atol=1e-7)
    picture = analysis.draw_ablation(found, tmp_path / "heads.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_least_important(share):
    draw = np.random.default_rng(1)
    found = analysis.Importance([draw.random(4), 100 * draw.random(4)], [])
    pruned = analysis.least_important(found, share)
    assert sum(map(len, pruned.values())) == round(8 * share)
    assert all(len(heads) < 4 for heads in pruned.values())
    with pytest.raises(ValueError, match="without heads"):
        analysis.least_important(found, 0.95)
    with pytest.raises(ValueError, match="below 1"):
        analysis.least_important(found, 1.0)


@pytest.mark.extended
def test_attributions_add_up(classifier):
    """To the difference of scores (completeness), for any label and for tags and answers."""
    for target in (None, "negative"):
        found = analysis.explain(classifier, "A good film, isn't it?", target, steps=64)
        difference = found.score - found.baseline
        assert abs(found.tokens.sum() - difference) < 0.01 * max(abs(difference), 0.1)
        assert [word.text for word, _ in found.words][:3] == ["A", "good", "film"]
        # Special tokens are those of the baseline.
        assert found.tokens[0] == found.tokens[-1] == 0
    backbone, tokenizer = classifier.backbone, classifier.tokenizer
    tagger = bf.TokenTagger(backbone, tokenizer, tags=["O", "B-X"], max_length=20)
    regressor = bf.TextRegressor(backbone, tokenizer, pair=True)
    qa = bf.SpanQA(backbone, tokenizer, max_length=20, stride=4)
    for task, x, target, name in (
        (tagger, "a good film", (1, "B-X"), "good: B-X"),
        (tagger, "a good film", (2, None), None),
        (regressor, ("a good film", "a bad one"), None, "score"),
        (qa, ("what film?", "a good film it is"), None, None),
    ):
        found = analysis.explain(task, x, target, steps=64)
        difference = found.score - found.baseline
        assert abs(found.tokens.sum() - difference) < 0.01 * max(abs(difference), 0.1)
        assert name in (None, found.target)


@pytest.mark.extended
def test_words_of_a_tagger(classifier):
    """They are the ones that it tags, and have the tags of its answer."""
    tagger = bf.TokenTagger(classifier.backbone, classifier.tokenizer, ["O", "B"], max_length=20)
    text = "isn't a good\u200b film \u200b good."
    answer = tagger.predict([text])[0]
    found = analysis.explain(tagger, text, (0, None))
    assert [word.text for word, _ in found.words] == [word["word"] for word in answer]
    for number, word in enumerate(answer):
        if found.example.words[number].tokens:
            target = analysis.explain(tagger, text, (number, None), steps=1).target
            assert target == f"{word['word']}: {word['tag']}"
        else:
            with pytest.raises(ValueError, match=f"Word {number}, .* has no token and no tag"):
                analysis.explain(tagger, text, (number, None), steps=1)


@pytest.mark.extended
def test_pictures_and_page(classifier, tmp_path):
    text = "</script><b>$5 & a good film"
    maps, found = analysis.attention_maps(classifier, text), analysis.explain(classifier, text)
    for draw, args in (
        (analysis.draw_heads, (maps,)),
        (analysis.draw_attention, (maps, 1, 0)),
        (analysis.draw_words, (found,)),
        (analysis.draw_similarity, (np.eye(3),)),
    ):
        assert draw(*args, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = analysis.write_page(tmp_path / "page.html", maps, found).read_text()
    assert page.count("</script>") == 2
    data = page.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data)["tokens"] == maps.tokens
    assert "<b>" not in page.split('class="words"')[1].split("</div>")[0]
    with pytest.raises(ValueError, match="layer must be from 0 to"):
        analysis.draw_attention(maps, 9, 0, tmp_path / "b.png")


@pytest.mark.extended
def test_similarity(classifier, smallest):
    other = bf.TextClassifier.from_pretrained(smallest)
    found = analysis.layer_similarity(classifier, classifier, TEXTS)
    np.testing.assert_allclose(np.diag(found), 1, atol=1e-5)
    between = analysis.layer_similarity(classifier, other, TEXTS)
    assert between.shape == (len(found), 2)
    assert (between > 0).all()
    assert (between <= 1 + 1e-5).all()


def test_vectors_of_what_predict_takes(classifier):
    """Words of a tagger, of which a long text has several windows."""
    given = classifier.backbone, classifier.tokenizer
    tagger = bf.TokenTagger(*given, ["O", "B"], max_length=8, stride=2)
    words = [["a", "good", "film"], ["bad"] * 30, ["it", "is"]]
    vectors = analysis.mean_vectors(tagger, words)
    assert vectors.shape == (3, classifier.backbone.config.hidden_size)
    alone = analysis.mean_vectors(tagger, words[::2])
    np.testing.assert_allclose(vectors[::2], alone, atol=1e-5)
    with pytest.raises(ValueError, match="Examples of Reranker are several rows of tokens"):
        analysis.mean_vectors(bf.Reranker(*given), (TEXTS, TEXTS))


@pytest.mark.parametrize("name", ["TextEmbedder", "SparseEmbedder", "MaskedLM"])
def test_what_is_no_answer_is_not_explained(classifier, name):
    task = getattr(bf, name)(classifier.backbone, classifier.tokenizer)
    with pytest.raises(ValueError, match=rf"question answering, got {name}\."):
        analysis.explain(task, TEXTS[0])


def test_a_text_without_tokens_leaves_the_others_as_they_are():
    """GPT-2's texts have no special tokens."""
    task = published.task("TextClassifier", "gpt2")
    vectors = analysis.mean_vectors(task, ["", *TEXTS])
    assert not vectors[0].any()
    np.testing.assert_allclose(vectors[1:], analysis.mean_vectors(task, TEXTS), atol=1e-5)


def test_a_context_without_words_explains_no_answer(classifier):
    task = bf.SpanQA(classifier.backbone, classifier.tokenizer, max_length=20, stride=4)
    for question in ("what film?", ""):
        with pytest.raises(ValueError, match="context must have words"):
            analysis.explain(task, (question, ""))


@pytest.mark.extended
def test_the_answer_that_is_explained(classifier):
    """It is the one of ``predict``, with its own white space, whatever the words are."""
    task = bf.SpanQA(classifier.backbone, classifier.tokenizer, max_answer=3)
    for context in ("日本語 東京。大好", "a  film, isn't it good"):
        best = task.predict({"question": "what?", "context": context})[0]["n_best"][0]
        assert analysis.explain(task, ("what?", context), steps=1).target == best["answer"]


def test_refused(classifier):
    with pytest.raises(ValueError, match="Layers are from 0 to"):
        analysis.prune(classifier, {7: [0]})
    with pytest.raises(ValueError, match="Heads of layer 0 are from 0"):
        analysis.prune(classifier, {0: [99]})
    every = range(attentions(classifier.backbone)[0].num_heads)
    with pytest.raises(ValueError, match="Layer 0 must keep one"):
        analysis.prune(classifier, {0: every})
    with pytest.raises(ValueError, match="importance must be"):
        analysis.prune(classifier, units=3)
    with pytest.raises(ValueError, match="'sad'"):
        analysis.explain(classifier, "a", "sad")
    with pytest.raises(ValueError, match="a string, or a tuple"):
        analysis.explain(classifier, 5)
    gpt = bf.build("gpt2", "tiny", num_layers=2)
    with pytest.raises(ValueError, match="All layers of gpt2 have the same number"):
        analysis.prune(gpt, {0: [0]})
    with pytest.raises(ValueError, match="no attention"):
        attentions(bf.build("bilstm", "tiny"))


# At least these.
OF_DIFFERENT_LAYERS = {
    "bert",
    "distilbert",
    "electra",
    "roberta",
    "spanbert",
    "tinybert",
    "xlm",
    "xlm_roberta",
}


@pytest.mark.full
@pytest.mark.parametrize("family", bf.families())
def test_every_family_is_pruned_or_refused(family):
    """Units and heads are taken out where layers may differ; outputs stay as without them."""
    backbone = _build(family)
    if not any("attention" in variable.path for variable in backbone.weights):
        return
    inputs = _inputs(backbone, rows=2, length=6)
    heads = {0: [0]}
    try:
        pruned = analysis.prune(backbone, heads)
    except ValueError as error:
        refused = "the same number of heads" in str(error)
        if family in OF_DIFFERENT_LAYERS or not refused:
            raise
        return
    with analysis.without_heads(backbone, heads):
        expected = backbone(inputs)["sequence_output"]
    found = pruned(inputs)["sequence_output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert pruned.count_params() < backbone.count_params()


@pytest.mark.extended
@only_in("full", "names1")
@pytest.mark.parametrize("names", [("query", "value"), ("value", "output")])
def test_lora_is_kept(smallest, names):
    """Its update of the output is by head too, in what is off and in what matters."""
    task = bf.TextClassifier.from_pretrained(smallest)
    tuning.add_lora(task.backbone, 2, names=names)
    draw = np.random.default_rng(0)
    for weight in task.weights:
        if "lora" in weight.path:
            weight.assign(draw.normal(0, 0.3, weight.shape))
    before = _scores(task)
    with analysis.without_heads(task.backbone, {0: [1]}):
        expected = _scores(task)
    np.testing.assert_array_equal(_scores(task), before)
    np.testing.assert_allclose(_scores(analysis.prune(task, {0: [1]})), expected, atol=1e-5)
    merged = task.with_backbone(Backbone("bert", task.backbone.config))
    values = plain_weights(task)
    for weight in merged.weights:
        weight.assign(values[weight.path])
    matters, same = (
        analysis.importance(each, TEXTS[:1], LABELS[:1], verbose=False) for each in (task, merged)
    )
    np.testing.assert_allclose(matters.heads[0], same.heads[0], rtol=1e-3, atol=1e-6)


def test_an_integral_that_is_inaccurate_warns(tiny):
    """Behind a normalization of the embeddings, scores change near 0 alone."""
    tokenizer = bf.load_tokenizer(tiny)
    keras.utils.set_random_seed(0)
    backbone = bf.build("deberta", "tiny", num_layers=1, vocab_size=tokenizer.vocab_size)
    task = bf.TextClassifier(backbone, tokenizer, ["no", "yes"], pair=False)
    for i, variable in enumerate(task.weights):
        variable.assign_add(np.random.default_rng(i).normal(0, 0.15, variable.shape))
    found = analysis.explain(task, TEXTS[0], "no", steps=64)
    assert found.tokens.sum() == pytest.approx(found.score - found.baseline, abs=5e-3)
    with pytest.warns(UserWarning, match=r"add up to .* needs more points than steps=2"):
        analysis.explain(task, TEXTS[0], "no", steps=2)


@pytest.mark.full
@pytest.mark.parametrize(
    "family", [name for name in bf.families() if "sequence" in registry.get(name).heads]
)
def test_every_family_is_explained_or_refused(family, tiny):
    record = registry.get(family)
    more = {"cutoffs": ()} if "cutoffs" in record.config.__dataclass_fields__ else {}
    characters = record.tokenizer.kind == "characters"
    tokenizer = CharacterTokenizer() if characters else bf.load_tokenizer(tiny)
    backbone = bf.build(family, "tiny", num_layers=2, vocab_size=tokenizer.vocab_size, **more)
    options = {"language_id": 0} if "language_ids" in backbone.input else {}
    task = bf.TextClassifier(backbone, tokenizer, ["no", "yes"], **options)
    if characters:
        with pytest.raises(ValueError, match="no embeddings of tokens"):
            analysis.explain(task, TEXTS[0])
    else:
        found = analysis.explain(task, TEXTS[0], "no", steps=64)
        difference = found.score - found.baseline
        assert abs(found.tokens.sum() - difference) < 0.01 * max(abs(difference), 0.1)
        assert [word.text for word, _ in found.words] == TEXTS[0].split()
    if "attention_scores" not in backbone.output:
        with pytest.raises(ValueError, match="no attention"):
            analysis.attention_maps(task, TEXTS[0])
        return
    for each in analysis.attention_maps(task, TEXTS[0]).layers:
        np.testing.assert_allclose(each.sum(axis=-1), 1, rtol=1e-5)
