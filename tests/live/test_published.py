"""What a task is published as, transformers answers as the task does: over families and tasks."""

import functools
import json

import numpy as np
import pytest

import bertfam_tf as bf
from tests import published

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.live

TEXTS = published.TEXTS
# In small networks with perturbed weights, which multiply what float32 rounds.
CLOSE = dict(rtol=0, atol=1e-5)


def over_families(*names):
    pairs = [(name, family) for name in names for family in published.families(name)]
    return pytest.mark.parametrize(("name", "family"), pairs)


@pytest.fixture
def pair(name, family, tmp_path):
    """A task, and the directory that it was published to."""
    task = published.task(name, family)
    task.save_pretrained(tmp_path / "out")
    return task, tmp_path / "out"


def loaded(kind, directory, spare=None):
    """A model of transformers', with no missing or unexpected tensors, and its tokenizer.

    A language model of ours keeps its pooler (``spare``), for what is trained on it.
    """
    model, report = kind.from_pretrained(directory, output_loading_info=True)
    if spare:
        report["unexpected_keys"] = [k for k in report["unexpected_keys"] if spare not in k]
    assert not any(report.values()), report
    return model.eval(), transformers.AutoTokenizer.from_pretrained(directory)


@over_families("TextClassifier", "MultiLabelClassifier", "TextRegressor")
def test_sequences(pair, name):
    task, directory = pair
    loaded(transformers.AutoModelForSequenceClassification, directory)
    pipe = transformers.pipeline("text-classification", model=str(directory), top_k=None)
    ours = task.predict(TEXTS)
    # Their pipelines do not batch what has a memory (theirs of XLNet), nor without padding.
    alone = pipe.tokenizer.pad_token is None or hasattr(pipe.model.config, "mem_len")
    for batch_size in [1] if alone else [1, 3]:
        theirs = pipe(TEXTS, batch_size=batch_size)
        if name == "TextRegressor":
            np.testing.assert_allclose([row[0]["score"] for row in theirs], ours, **CLOSE)
            continue
        for row, answer in zip(theirs, ours, strict=True):
            scores = {each["label"]: each["score"] for each in row}
            found = [scores[label] for label in task.labels]
            np.testing.assert_allclose(found, answer["scores"], **CLOSE)
            if name == "TextClassifier":
                assert max(scores, key=scores.get) == answer["label"]


@over_families("TextClassifier")
def test_pairs_of_texts(name, family, tmp_path):
    task = published.task(name, family)
    task.pair = True
    task.save_pretrained(tmp_path / "out")
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)
    given = list(zip(TEXTS, TEXTS[::-1], strict=True))
    ours = task.predict({"text": TEXTS, "text_pair": TEXTS[::-1]})
    for (first, second), answer in zip(given, ours, strict=True):
        row = pipe({"text": first, "text_pair": second}, truncation=True)
        scores = {each["label"]: each["score"] for each in row}
        found = [scores[label] for label in task.labels]
        np.testing.assert_allclose(found, answer["scores"], **CLOSE)


@over_families("TokenTagger")
def test_words(pair):
    task, directory = pair
    loaded(transformers.AutoModelForTokenClassification, directory)
    pipe = transformers.pipeline("token-classification", model=str(directory), ignore_labels=[])
    texts = [" ".join(text.split()) for text in TEXTS]
    for theirs, ours, text in zip(pipe(texts), task.predict(texts), texts, strict=True):
        assert len(ours) == len(text.split())
        if theirs[0]["start"] is None and not text.isascii():
            continue  # without offsets only known letters tell where words end
        for word, first in zip(ours, _first_pieces(theirs, ours, text), strict=True):
            assert first["entity"] == word["tag"], word
            np.testing.assert_allclose(first["score"], word["score"], **CLOSE)


def _first_pieces(theirs, ours, text):
    """Of each word the piece that it begins with."""
    if theirs[0]["start"] is None:  # Python's classes know no offsets
        ends = [True, *(each["word"].endswith("</w>") for each in theirs)]
        return [each for each, after in zip(theirs, ends, strict=False) if after]
    starts = {each["start"] + _blanks(text, each): each for each in reversed(theirs)}
    return [starts[word["start"]] for word in ours]


def _blanks(text, each):
    """The number of spaces that a piece of the reference's begins with."""
    covered = text[each["start"] : each["end"]]
    return len(covered) - len(covered.lstrip())


@over_families("SpanQA")
def test_answers_in_a_context(pair):
    """Their pipeline is gone: the model, the tokenizer, and the best span of both."""
    task, directory = pair
    model, tokenizer = loaded(transformers.AutoModelForQuestionAnswering, directory)
    contexts = ["the cast of it", "a good film , was it not ?", "bad plot"]
    for context in contexts:
        for question in ("was it good ?", "the plot"):
            ours = task.predict({"question": [question], "context": [context]})[0]
            answer, score = _best_span(model, tokenizer, question, context, task.max_answer)
            assert answer == ours["answer"]
            np.testing.assert_allclose(score, _score(ours), rtol=0, atol=1e-4)


def _score(ours):
    return ours["no_answer_score"]


def _best_span(model, tokenizer, question, context, most):
    given = tokenizer(question, context, return_tensors="pt")
    with torch.no_grad():
        found = model(**given)
    start, end = (x[0].double().numpy() for x in (found.start_logits, found.end_logits))
    places = _of_context(tokenizer, given)
    sums = {(i, j): start[i] + end[j] for i in places for j in places if i <= j < i + most}
    first, last = max(sums, key=sums.get)
    cls = _null(tokenizer, given)
    return _text(tokenizer, question, context, first, last), (
        start[cls] + end[cls] - sums[first, last]
    )


def _null(tokenizer, given):
    ids = given["input_ids"][0].tolist()
    return ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0


def _of_context(tokenizer, given):
    if tokenizer.is_fast:
        return [i for i, s in enumerate(given.sequence_ids(0)) if s == 1]
    ids = given["input_ids"][0].tolist()
    second = ids.index(tokenizer.sep_token_id, 1)
    return range(second + 1, len(ids) - 1)


def _text(tokenizer, question, context, first, last):
    if tokenizer.is_fast:
        offsets = tokenizer(question, context, return_offsets_mapping=True)["offset_mapping"]
        return context[offsets[first][0] : offsets[last][1]].strip()
    ids = tokenizer(question, context)["input_ids"]
    return tokenizer.decode(ids[first : last + 1]).strip()


@over_families("MultipleChoice")
def test_choices(pair):
    """There is no pipeline of theirs: the model and the tokenizer."""
    task, directory = pair
    named = json.loads((directory / "config.json").read_text())["architectures"][0]
    model, tokenizer = loaded(getattr(transformers, named), directory)
    rows = [("a good film", ["it was", "not bad , all"]), ("the cast", ["the plot", "bad"])]
    ours = task.predict({"text": [r[0] for r in rows], "choices": [r[1] for r in rows]})
    for (text, choices), answer in zip(rows, ours, strict=True):
        logits = _choice_logits(model, tokenizer, text, choices)
        np.testing.assert_allclose(logits.softmax(-1).numpy(), answer["scores"], **CLOSE)


def _choice_logits(model, tokenizer, text, choices):
    scores = []
    for choice in choices:
        given = tokenizer(text, choice, return_tensors="pt")
        double = hasattr(model, "multiple_choice_head")
        if double:  # which supports no mask of three dimensions
            del given["attention_mask"]
        with torch.no_grad():
            found = model(**{name: value[None] for name, value in given.items()})
        scores.append((found.mc_logits if double else found.logits).reshape(1))
    return torch.cat(scores)


@over_families("MaskedLM")
def test_masks(pair):
    task, directory = pair
    loaded(transformers.AutoModelForMaskedLM, directory, spare="pooler.")
    pipe = transformers.pipeline("fill-mask", model=str(directory), top_k=5)
    assert pipe.tokenizer.mask_token == task.mask_token
    texts = [f"a good {task.mask_token} , was it", f"the {task.mask_token}"]
    for text, theirs, ours in zip(texts, pipe(texts), task.predict(texts), strict=True):
        (filled,) = ours
        found, expected = ([each["score"] for each in rows] for rows in (theirs, filled))
        np.testing.assert_allclose(found, expected, **CLOSE, err_msg=text)
        tokens = [each["token"].strip() for each in filled]
        written = [pipe.tokenizer.decode(each["token"], skip_special_tokens=True).strip()
                   for each in theirs]  # fmt: skip
        shown = [each["token_str"].strip() for each in theirs]
        # In ours of SentencePiece a control symbol is nothing, and what is unknown has a sign.
        if "⁇" in tokens:
            unknown = pipe.tokenizer.unk_token
            pairs = zip(shown, written, strict=True)
            written = ["⁇" if one == unknown else other for one, other in pairs]
        assert tokens in (shown, written)


@over_families("CausalLM")
def test_continuations(pair):
    task, directory = pair
    model, tokenizer = loaded(transformers.AutoModelForCausalLM, directory)
    prompts = ["the cast of", "a good film , was"]
    assert any(text.strip() for text in task.generate(prompts, max_new_tokens=6))
    for prompt in prompts:
        given = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        new = model.generate(**given, max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(new[0, given["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text.strip() == task.generate(prompt, max_new_tokens=6).strip()
    if hasattr(model.config, "mem_len"):
        return  # their pipeline puts a text of its own before XLNet's prompts
    pipe = transformers.pipeline("text-generation", model=str(directory))
    options = dict(max_new_tokens=6, do_sample=False, return_full_text=False)
    for prompt in prompts:
        found = pipe(prompt, **options)[0]["generated_text"]
        assert found == task.generate(prompt, max_new_tokens=6)


@over_families("TextEmbedder")
def test_backbones(pair):
    task, directory = pair
    model, tokenizer = loaded(transformers.AutoModel, directory)
    for text, ours in zip(TEXTS, task.predict(TEXTS), strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(states / states.norm(), ours, **CLOSE)


@over_families("TextClassifier")
def test_ids(pair):
    """Special tokens, segments and truncation, too."""
    task, directory = pair
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    assert tokenizer.model_max_length == task.max_length
    special = tokenizer.all_special_tokens
    for text in [*TEXTS, "a" * 99, f"a {special[0]} b", "\xad\x00 \x1f\t.", "".join(special)]:
        ours = {k: v.numpy()[0] for k, v in task.preprocess({"text": [text]}).items()}
        theirs = tokenizer(text, truncation=True)
        np.testing.assert_array_equal(theirs["input_ids"], ours["token_ids"], err_msg=repr(text))
        if "token_type_ids" in theirs:
            np.testing.assert_array_equal(theirs["token_type_ids"], ours["segment_ids"])


def test_products_of_lora_are_in_the_weights(tmp_path):
    from bertfam_tf.training.tuning import add_lora

    task = published.task("TextClassifier", "bert")
    task.save_pretrained(tmp_path / "before")
    add_lora(task.backbone, 2)
    for i, variable in enumerate(task.backbone.trainable_variables):
        variable.assign(np.random.default_rng(i).normal(0, 1, variable.shape))
    ours = task.predict(TEXTS)
    before = transformers.pipeline("text-classification", model=str(tmp_path / "before"))(TEXTS)
    assert abs(before[0]["score"] - ours[0]["scores"].max()) > 1e-3
    task.save_pretrained(tmp_path / "out")
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "out"))
    for theirs, answer in zip(pipe(TEXTS), ours, strict=True):
        assert theirs["label"] == answer["label"]
        np.testing.assert_allclose(theirs["score"], answer["scores"].max(), **CLOSE)


def test_a_real_checkpoint(minilm, tmp_path):
    task = bf.TextClassifier.from_pretrained(minilm, labels=["negative", "positive"])
    task.save_pretrained(tmp_path / "out")
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "out"))
    for theirs, answer in zip(pipe(TEXTS), task.predict(TEXTS), strict=True):
        assert theirs["label"] == answer["label"]
        np.testing.assert_allclose(theirs["score"], answer["scores"].max(), **CLOSE)


@pytest.mark.parametrize("code", ["en", "de"])
def test_languages(code, tmp_path):
    """With ``langs`` and the language's rules, transformers answers as the task in the language."""
    made = published.tokenizer("xlm")
    shape = dict(hidden_size=16, intermediate_size=64, num_heads=2, num_layers=1)
    backbone = bf.build("xlm", "tiny", vocab_size=made.vocab_size, num_languages=3, **shape)
    languages = {"en": 1, "de": 2}
    task = bf.TextClassifier(backbone, made, ["no", "yes"], language_id=1, languages=languages)
    for i, variable in enumerate(task.weights):
        variable.assign(np.random.default_rng(i).normal(0, 0.5, variable.shape))
    task.save_pretrained(tmp_path / "out")
    kind = transformers.AutoModelForSequenceClassification
    model, tokenizer = loaded(kind, tmp_path / "out")
    assert model.config.lang2id == languages
    tokenizer._tokenize = functools.partial(tokenizer._tokenize, lang=code)
    for text, answer in zip(TEXTS, task.predict(TEXTS, language=code), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        langs = torch.full_like(inputs["input_ids"], model.config.lang2id[code])
        logits = model(**inputs, langs=langs).logits[0]
        np.testing.assert_allclose(logits.softmax(-1).detach(), answer["scores"], **CLOSE)
