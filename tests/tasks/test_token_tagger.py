"""Tags of words: against a model that reads window by window, and back to the text."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import metrics
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.export.runtime import load
from bertfam_tf.tasks.token_tagger import _padded, _Spans
from bertfam_tf.text.splitting import WordSplitter
from tests.seeding import seed
from tests.selection import in_full, only_in

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = [
    "the film was very good !",
    " unhappy  actors\tplaying\u3000unhappily ",
    "",
    "the \x01 plot \u200b\x02",
    "it is not a good film or movie but the unhappy cast of actors was playing well , and they "
    "were very dull , and you were happy with the long story of a short bad film , were you not ?",
    "unhappily " * 60,
    "good",
]
HOSTILE = [
    " \t\n\u3000",
    b"\xff good \xc3",
    "good \ud800",
    "good\0",
    "\0",
    "x" * 10_000,
    "good " + "unhappily" * 1200 + " film",
    "[SEP] [MASK] [CLS] good [PAD]",
    "日本語 العربية 🙂",
    "\x01 \x02",
]
SENTENCES = [
    ("the good film", "O B-PER I-PER"),
    ("a bad movie was dull", "B-LOC I-LOC I-LOC O O"),
    ("unhappy actors", "B-LOC B-LOC"),
    ("it is not great", "O O B-PER B-LOC"),
    ("they play", "B-PER O"),
    ("the cast you", "O O B-LOC"),
    ("long short story", "B-PER B-PER I-PER"),
    ("a plot ?", "B-LOC I-LOC O"),
]
slices = tf.data.Dataset.from_tensor_slices


def _perturb(task):
    """Weights with which words have all five tags."""
    rng = np.random.default_rng(2)
    for variable in task.weights:
        if "seed" not in variable.path:
            variable.assign_add(rng.normal(0, 0.3, variable.shape).astype("float32"))


@pytest.fixture(scope="module")
def tagger(smallest):
    task = bf.TokenTagger.from_pretrained(smallest, TAGS)
    _perturb(task)
    return task


@pytest.fixture(scope="module")
def trained(smallest):
    seed(0)
    task = bf.TokenTagger.from_pretrained(smallest, TAGS, dropout=0.0, attention_dropout=0.0)
    task.compile(keras.optimizers.Adam(0.02))
    texts, tags = zip(*SENTENCES, strict=True)
    # One pass over copies: each epoch sets the tokenizer's graph up again.
    # One pass over copies: each epoch sets the tokenizer's graph up again.
    task.history_of_fit = task.fit(
        slices((list(texts), list(tags))).repeat(60), batch_size=8, verbose=0,
        validation_data=(texts, [row.split() for row in tags]),
    ).history  # fmt: skip
    return task


def _decoded(text):
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    return text.decode("utf-8", "replace")


def _windows(task, text):
    """(ids, [(position, word)]) of each window: every word where it has most context."""
    words = [task.tokenizer.tokenize(word).numpy().tolist() for word in _decoded(text).split()]
    pieces = [piece for word in words for piece in word]
    firsts = np.cumsum([0, *map(len, words)]).tolist()
    room = task.max_length - 2
    begins = [0]
    while begins[-1] + room < len(pieces):
        begins.append(begins[-1] + room - task.stride)
    places = [[] for _ in begins]
    for number, (first, word) in enumerate(zip(firsts, words, strict=False)):
        context = []
        for begin in begins:
            count = min(room, len(pieces) - begin)
            inside = first - begin
            left = min(inside, count - 1 - inside) if 0 <= inside < count else -1
            context.append(left + 0.01 * count if left >= 0 else -1)
        if word:
            window = int(np.argmax(context))
            places[window].append((1 + first - begins[window], number))
    ids = [[2, *pieces[begin : begin + room], 3] for begin in begins]
    return len(words), list(zip(ids, places, strict=True))


def _reference(task, text):
    """Tags and scores of the words, one window after the other."""
    count, windows = _windows(task, text)
    tags, scores = ["O"] * count, [0.0] * count
    for ids, places in windows:
        ids = np.array([ids], "int32")
        ones = np.ones_like(ids)
        inputs = {"token_ids": ids, "padding_mask": ones, "segment_ids": ones * 0}
        chances = tf.nn.softmax(task(inputs, training=False))[0].numpy()
        for position, word in places:
            tags[word] = task.tags[chances[position].argmax()]
            scores[word] = chances[position].max()
    return tags, scores


# Answers --------------------------------------------------------------------------------------


@only_in("extended", "3")
@pytest.mark.parametrize("batch_size", in_full([1, 3], [3]))
def test_answers_are_those_of_the_reference(tagger, batch_size):
    rows = tagger.predict(TEXTS, batch_size=batch_size)
    assert len(rows) == len(TEXTS)
    for text, row in zip(TEXTS, rows, strict=True):
        tags, scores = _reference(tagger, text)
        assert [word["tag"] for word in row] == tags
        np.testing.assert_allclose([word["score"] for word in row], scores, atol=2e-5)
        assert [word["word"] for word in row] == text.split()
        assert [text[word["start"] : word["end"]] for word in row] == text.split()
    assert {word["tag"] for row in rows for word in row} == set(TAGS)


def test_a_word_without_a_piece_is_outside(tagger):
    row = tagger.predict(TEXTS[3:4])[0]
    assert [word["word"] for word in row] == ["the", "\x01", "plot", "\u200b\x02"]
    assert [(word["tag"], word["score"]) for word in (row[1], row[3])] == [("O", 0.0)] * 2
    assert row[0]["score"] > 0.2


@pytest.mark.extended
@only_in("extended", "1")
@pytest.mark.parametrize("batch_size", [1, 10])
def test_hostile_texts(tagger, batch_size):
    rows = tagger.predict(HOSTILE, batch_size=batch_size)
    for text, row, spans in zip(HOSTILE, rows, tagger.entities(HOSTILE), strict=True):
        text = _decoded(text)
        assert [word["word"] for word in row] == text.split()
        for word in row:
            assert text[word["start"] : word["end"]] == word["word"]
            assert 0 <= word["score"] <= 1
        for span in spans:
            assert text[span["start"] : span["end"]] == span["entity"]


def test_texts_of_ten_thousand_words(tagger):
    text = "the film was unhappily dull \u3000 " * 2000
    row = tagger.predict([text])[0]
    assert [word["word"] for word in row] == text.split()


def test_real_sentences_come_back_word_by_word(tagger, real_data):
    blocks = real_data("conll2003/eng.testb").read_text("utf-8").split("\n\n")
    sentences = [[line.split(" ")[0] for line in block.split("\n") if line] for block in blocks]
    sentences = [words for words in sentences if words and words[0] != "-DOCSTART-"]
    assert len(sentences) == 3453
    for words, row in zip(sentences, tagger.predict(sentences, batch_size=128), strict=True):
        assert [word["word"] for word in row] == words
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        assert [word["end"] for word in row] == ends.tolist()
        assert [word["start"] for word in row] == (ends - [len(word) for word in words]).tolist()


@pytest.mark.extended
def test_entities_are_parts_of_the_text(tagger):
    for text, row, spans in zip(
        TEXTS, tagger.predict(TEXTS), tagger.entities(TEXTS, batch_size=2), strict=True
    ):
        expected = metrics.entities([word["tag"] for word in row])
        assert len(spans) == len(expected)
        for span, (label, first, behind) in zip(spans, expected, strict=True):
            words = row[first:behind]
            assert (span["start"], span["end"]) == (words[0]["start"], words[-1]["end"])
            assert span["entity"] == text[span["start"] : span["end"]]
            assert span["label"] == label
            assert span["score"] == pytest.approx(np.mean([w["score"] for w in words]), abs=1e-5)


@pytest.mark.parametrize(
    "tags",
    [
        ["O", "I-A", "B-A", "I-B", "B-B"],
        ["B-A", "I-A", "B-B", "I-B", "O"],
        ["S-A", "B-A", "I-A", "E-A", "O", "B-B", "E-B", "S-B", "I-B"],
    ],
    ids=["IOB1", "IOB2", "IOBES"],
)
def test_decoding_of_random_tags(tags):
    rng = np.random.default_rng(1)
    counts = [*rng.integers(0, 9, 200).tolist(), 0, 0]
    texts = [" ".join("é" * rng.integers(1, 4) for _ in range(count)) for count in counts]
    tag = rng.integers(0, len(tags), sum(counts))
    score = rng.random(sum(counts)).astype("float32")
    decode = tf.function(lambda *args: _padded(_Spans(tags)(*args)), autograph=False)
    found = decode(tf.constant(texts), WordSplitter()(texts), tf.constant(tag, tf.int32), score)
    found = {name: value.numpy() for name, value in found.items()}
    begin = 0
    for i, (text, count) in enumerate(zip(texts, counts, strict=True)):
        spans = metrics.entities([tags[t] for t in tag[begin : begin + count]])
        assert found["count"][i] == len(spans)
        words = text.split()
        for k, (label, first, behind) in enumerate(spans):
            assert found["text"][i, k].decode() == " ".join(words[first:behind])
            assert found["type"][i, k].decode() == label
            start, end = found["start"][i, k], found["end"][i, k]
            assert text[start:end] == " ".join(words[first:behind])
            mean = score[begin + first : begin + behind].mean()
            assert found["score"][i, k] == pytest.approx(mean, rel=1e-5)
        assert set(found["start"][i, len(spans) :]) <= {-1}
        begin += count


@pytest.mark.full
def test_splitting_at_punctuation(smallest, tagger):
    task = bf.TokenTagger.from_pretrained(smallest, TAGS, split="punctuation")
    rows = task.predict(["The film, «was» good.", "x"])
    assert [word["word"] for word in rows[0]] == "The film , « was » good .".split()
    assert [(word["start"], word["end"]) for word in rows[0]][:3] == [(0, 3), (4, 8), (8, 9)]
    with pytest.raises(ValueError, match="Lists of words are words already; with split='punct"):
        task.predict([["a"]])
    task.split = "spaces"
    assert [word["word"] for word in task.predict(["The film, was"])[0]] == "The film, was".split()
    assert len(task.predict([["a,", "b"]])[0]) == 2


# Labels ---------------------------------------------------------------------------------------


@pytest.mark.extended
def test_labels_stand_at_first_pieces_where_context_is_most(tagger):
    rng = np.random.default_rng(2)
    numbers = [rng.integers(0, len(TAGS), len(text.split())) for text in TEXTS]
    tags = [[TAGS[i] for i in row] for row in numbers]
    ((inputs, labels, weights),) = tagger.text_batches(TEXTS, tags, range(7), batch_size=7)
    lengths = inputs["padding_mask"].numpy().sum(1)
    rows = inputs["token_ids"].numpy().tolist()
    ids = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    targets = labels.numpy()
    windows = [(row, *w) for row, text in enumerate(TEXTS) for w in _windows(tagger, text)[1]]
    assert ids == [window for _, window, _ in windows]
    assert weights.numpy()[:, 0].tolist() == [float(row) for row, *_ in windows]
    expected = np.full_like(targets, -1)
    for i, (row, _, places) in enumerate(windows):
        for position, word in places:
            expected[i, position] = numbers[row][word]
    np.testing.assert_array_equal(targets, expected)
    # Each word once, but for the two that have no piece.
    assert (targets >= 0).sum() == sum(map(len, numbers)) - 2


@pytest.mark.extended
@pytest.mark.parametrize("name", ["accuracy", "acc"])
def test_an_accuracy_by_name_counts_words(tagger, name):
    tokens = ["a", "fine", "film"]
    tagger.compile(keras.optimizers.SGD(0.0))
    expected = tagger.test_on_batch([tokens], [["O", "B-PER", "O"]], return_dict=True)
    tagger.compile(keras.optimizers.SGD(0.0), metrics=[name])
    scores = tagger.test_on_batch([tokens], [["O", "B-PER", "O"]], return_dict=True)
    assert scores[name] == expected["accuracy"]


def test_a_loss_ignores_tokens_without_a_tag(tagger):
    loss = keras.losses.SparseCategoricalCrossentropy
    with pytest.raises(ValueError, match="must have ignore_class=-1, the label of tokens without"):
        tagger.compile(loss=loss(from_logits=True))
    tagger.compile(loss=loss(from_logits=True, ignore_class=-1))


@pytest.mark.full
def test_the_loss_is_the_mean_over_words(smallest):
    task = bf.TokenTagger.from_pretrained(smallest, TAGS, dropout=0.0, attention_dropout=0.0)
    _perturb(task)
    task.compile(keras.optimizers.SGD(0.0))
    texts, tags = zip(*SENTENCES, strict=True)
    texts, tags = [*texts, TEXTS[3]], [*tags, "O B-PER O O"]
    weights = [1, 2, 0, 1, 1, 1, 3, 1, 1]
    losses, right, weighted = [], [], []
    for text, row, weight in zip(texts, tags, weights, strict=True):
        _, [(ids, places)] = _windows(task, text)
        ids = np.array([ids], "int32")
        ones = np.ones_like(ids)
        inputs = {"token_ids": ids, "padding_mask": ones, "segment_ids": ones * 0}
        logits = task(inputs, training=False)[0]
        for position, word in places:
            label = TAGS.index(row.split()[word])
            losses.append(-tf.nn.log_softmax(logits[position])[label].numpy())
            weighted.append(losses[-1] * weight)
            right.append(logits[position].numpy().argmax() == label)
    found = task.fit(texts, tags, batch_size=9, verbose=0, validation_data=(texts, tags)).history
    for name in ("loss", "val_loss"):
        assert found[name][0] == pytest.approx(np.mean(losses), rel=1e-4)
    for name in ("accuracy", "val_accuracy"):
        assert found[name][0] == pytest.approx(np.mean(right))
    found = task.fit(texts, tags, sample_weight=weights, batch_size=9, verbose=0).history
    assert found["loss"][0] == pytest.approx(np.mean(weighted), rel=1e-4)


@pytest.mark.extended
def test_evaluate_scores_answers(tagger):
    texts = TEXTS[:4]
    wanted = [[TAGS[(i + len(w)) % 5] for i, w in enumerate(text.split())] for text in texts]
    found = [[word["tag"] for word in row] for row in tagger.predict(texts)]
    expected = metrics.entity_scores(wanted, found)
    joined = [" ".join(row) for row in wanted]
    numbers = [[TAGS.index(tag) for tag in row] for row in wanted]
    words = [text.split() for text in texts]
    for data in (
        (texts, wanted),
        (words, joined),
        (words, [[tag.encode() for tag in row] for row in wanted]),
        (words, numbers),
        ({"text": texts, "label": wanted},),
        ({"text": words}, [np.array(row) for row in wanted]),
        (slices((texts, joined)),),
        (slices({"text": texts, "label": joined}).batch(3),),
    ):
        scores = tagger.evaluate(*data, batch_size=2, return_dict=True)
        assert scores == pytest.approx(expected)
    assert tagger.evaluate(texts, wanted) == pytest.approx(list(expected.values()))


@pytest.mark.full
def test_generators_of_words_and_tags(smallest):
    """Batches of lists of lists, as ``fit`` takes them whole."""
    words = [["Ada", "met", "Bob"], ["it", "is"], ["Ada", "is", "in", "Rome"]]
    tags = [["B-PER", "O", "B-PER"], ["O", "O"], ["B-PER", "O", "O", "B-LOC"]]

    def batches():
        yield words[:2], tags[:2]
        yield words[2:], tags[2:]

    task = bf.TokenTagger.from_pretrained(smallest, TAGS, dropout=0.0, attention_dropout=0.0)
    expected = task.evaluate(words, tags, verbose=0, return_dict=True)
    assert task.evaluate(batches(), verbose=0, return_dict=True) == pytest.approx(expected)
    found, whole = task.predict(texts for texts, _ in batches()), task.predict(words)
    for one, other in zip(found, whole, strict=True):
        assert [(w["word"], w["tag"]) for w in one] == [(w["word"], w["tag"]) for w in other]
    history = task.fit(batches(), verbose=0, validation_data=batches()).history
    assert np.isfinite(history["loss"] + history["val_loss"]).all()


@pytest.mark.extended
def test_a_few_sentences_are_learnt_by_heart(trained):
    texts, tags = zip(*SENTENCES, strict=True)
    scores = trained.evaluate(texts, tags, return_dict=True)
    assert scores == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "accuracy": 1.0}
    assert trained.history_of_fit.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert trained.history_of_fit["val_accuracy"] == [1.0]
    assert trained.entities(["the good film", "a plot ?"]) == [
        [{"entity": "good film", "label": "PER", "score": pytest.approx(1, abs=0.1),
          "start": 4, "end": 13}],
        [{"entity": "a plot", "label": "LOC", "score": pytest.approx(1, abs=0.1),
          "start": 0, "end": 6}],
    ]  # fmt: skip


@pytest.mark.full
def test_tags_that_mark_no_entities(smallest):
    task = bf.TokenTagger.from_pretrained(smallest, ["NN", "VB", "O"])
    scores = task.evaluate(["a film"], [["NN", "VB"]], return_dict=True)
    assert scores.keys() == {"accuracy"}
    assert set(task.signatures()) == {"serving_default", "ids"}
    with pytest.raises(ValueError, match=r"The tags mark no entities; .* not NN, VB, O"):
        task.entities(["a"])
    assert task.evaluate([""], [""], return_dict=True) == {"accuracy": 0.0}


# Disk -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_save_and_load(tagger, tmp_path):
    tagger.save(tmp_path / "task")
    again = bf.load(tmp_path / "task")
    assert type(again) is bf.TokenTagger
    assert (again.tags, again.split, again.stride, again.max_length) == (TAGS, "spaces", 6, 24)
    for found, wanted in zip(again.predict(TEXTS), tagger.predict(TEXTS), strict=True):
        scores = [[word.pop("score") for word in row] for row in (found, wanted)]
        np.testing.assert_allclose(*scores, atol=1e-6)
        assert found == wanted


@pytest.mark.full
def test_the_export_answers_as_predict_does(tagger, tmp_path):
    width, most = 50, 3
    servable = load(tagger.export(tmp_path, max_tokens=width, max_entities=most))
    texts = [*TEXTS, *HOSTILE]
    given = [t if isinstance(t, bytes) else t.encode("utf-8", "replace") for t in texts]
    given = {"text": np.array(given, object)}
    words, entities = servable.run("", given), servable.run("entities", given)
    assert {name: (value.dtype, value.shape[1:]) for name, value in words.items()} == {
        "tokens": (object, (width,)), "tags": (object, (width,)), "scores": (np.float32, (width,)),
        "offsets": (np.int32, (width, 2)), "count": (np.int32, ()),
    }  # fmt: skip
    assert {name: (value.dtype, value.shape[1:]) for name, value in entities.items()} == {
        "type": (object, (most,)), "text": (object, (most,)), "score": (np.float32, (most,)),
        "start": (np.int32, (most,)), "end": (np.int32, (most,)), "count": (np.int32, ()),
    }  # fmt: skip
    words["start"], words["end"] = np.moveaxis(words["offsets"], 2, 0)
    columns = {"word": "tokens", "tag": "tags", "score": "scores", "start": "start", "end": "end"}
    _check_rows(words, columns, tagger.predict(texts), width)
    columns = {"entity": "text", "label": "type", "score": "score", "start": "start", "end": "end"}
    _check_rows(entities, columns, tagger.entities(texts), most)
    assert max(words["count"]) > width
    assert max(entities["count"]) > most


def _check_rows(found, columns, expected, width):
    assert found["count"].tolist() == list(map(len, expected))
    for i, row in enumerate(expected):
        for key, name in columns.items():
            values, padding = [part[key] for part in row[:width]], {"start": -1, "end": -1}
            filling = [padding.get(key, 0.0 if key == "score" else "")] * (width - len(values))
            if found[name].dtype == object:
                assert [v.decode("utf-8", "replace") for v in found[name][i]] == values + filling
            else:
                np.testing.assert_allclose(found[name][i], values + filling, atol=2e-5)


@pytest.mark.parametrize("option", ["max_tokens", "max_entities"])
def test_answers_without_any_width(tagger, tmp_path, option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        tagger.export(tmp_path, **{option: 0})


# Errors ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        (
            ["a film", "good"],
            ["O O", "O O"],
            "number: 1 and 2, in the text that begins with 'good'",
        ),
        (["a\nfilm"], [["O"]], "differ in number: 2 and 1, in the text that begins with 'a film'"),
        (["a film"], [["O", "B-X"]], "The tag 'B-X' is not one of: O, B-PER"),
        (["a film"], ["O B-X"], "The tag 'B-X' is not one of: O, B-PER"),
        (["a film"], [[0, 5]], "The tag '5' is not one of"),
        (["a film"], [7], "Example 0 of the labels must be a list of tags, got 7"),
        (["a film"], None, "No labels were given with the texts"),
        (slices(["a film"]), None, "No labels were given with the texts"),
        (slices((["a film"], ["O X"])), None, "The tag 'X' is not one of"),
        (
            slices((["a film"], [[0, 0]])),
            None,
            "labels of a data set must be one string for each text",
        ),
        ([["a", "b c"]], ["O O"], "Example 0 has 'b c' for word 1, expected a string that is not"),
        ([["a"], ["b", ""]], ["O", "O O"], "Example 1 has '' for word 1"),
        ([["a"], "b"], ["O", "O"], "Example 1 is 'b'; the others are lists of words"),
        ([["a"]], ["O", "O"], "differ in number"),
        ([], [], "There is no text"),
    ],
)
def test_labels_that_do_not_fit(tagger, x, y, error):
    with pytest.raises(ValueError, match=error):
        tagger.evaluate(x, y)
    with pytest.raises(ValueError, match=error), as_value_errors():
        list(tagger.text_batches(x, y))


@pytest.mark.extended
def test_errors_of_fit(tagger):
    tagger.compile(keras.optimizers.SGD(0.0))
    with pytest.raises(ValueError, match="number: 2 and 1, in the text that begins with 'a film'"):
        tagger.fit(["a film"], ["O"], verbose=0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tags": ["O"]}, "labels must be at least two distinct strings"),
        ({"tags": ["O", "O"]}, "labels must be at least two"),
        ({"tags": ["O", "B PER"]}, "The tag 'B PER' is empty or contains white space"),
        ({"tags": ["O", ""]}, "The tag '' is empty"),
        ({"tags": TAGS, "split": "words"}, "split must be spaces or punctuation"),
        ({"tags": TAGS, "stride": 30}, "each window advances"),
        ({}, "has no tokens head; pass tags"),
    ],
)
def test_arguments_that_do_not_fit(smallest, options, error):
    with pytest.raises(ValueError, match=error):
        bf.TokenTagger.from_pretrained(smallest, **options)


def test_evaluate_takes_no_weights(tagger):
    with pytest.raises(TypeError, match="evaluate takes no 'sample_weight'"):
        tagger.evaluate(["a"], ["O"], sample_weight=[1])
