"""pandas, as Keras users hold their data, and single texts: what the verbs take."""

import numpy as np
import pandas as pd
import pytest

import bertfam_tf as bf
from bertfam_tf.data import batches
from bertfam_tf.data.inputs import examples

A = ["a", "b", "c"]


@pytest.fixture(scope="module")
def frame():
    texts = ["a good film", "bad movie", "it is"] * 2
    labels = ["positive", "negative", "neutral"] * 2
    return pd.DataFrame({"text": texts, "label": labels, "year": 1999}, index=range(6, 0, -1))


@pytest.mark.full
def test_a_classifier(classifier, frame):
    text, label = frame["text"], frame["label"]
    validation = (text, label.astype("category"))
    history = classifier.fit(text, label, validation_data=validation, verbose=0)
    assert "val_loss" in history.history
    history = classifier.fit(frame, validation_split=0.5, batch_size=2, verbose=0)
    assert "val_loss" in history.history
    expected = classifier.evaluate(text.tolist(), label.tolist(), verbose=0, return_dict=True)
    for data in ((text, label), (frame,)):
        assert classifier.evaluate(*data, verbose=0, return_dict=True) == pytest.approx(expected)
    labels = [answer["label"] for answer in classifier.predict(text.tolist())]
    for x in (text, frame, frame[["text"]]):
        assert [answer["label"] for answer in classifier.predict(x)] == labels


@pytest.mark.parametrize("names", [["no", "yes"], ["True", "False"]])
def test_bools_are_the_second_label_and_the_first(reader, names):
    def targets_of(labels):
        return bf.TextClassifier(reader.backbone, reader.tokenizer, labels)._parts.targets

    wanted = pd.Series([True, False, False], index=[3, 2, 1])
    targets = targets_of(names)
    found = [targets.encode(y, {}).numpy().tolist() for _, y in batches(A, wanted, batch_size=3)]
    assert found == [[0, 1, 1] if names[0] == "True" else [1, 0, 0]]
    targets.check(wanted)
    with pytest.raises(ValueError, match="'True' is not one of: a, b, c"):
        targets_of(A).check(wanted)


@pytest.mark.full
def test_several_labels_have_columns(smallest):
    task = bf.MultiLabelClassifier.from_pretrained(smallest, labels=["x", "y"])
    held = pd.DataFrame({"y": [1, 0], "x": [0, 0]})
    given = examples(pd.Series(A[:2]), held, None)
    ((_, labels),) = task.text_batches(*given)
    assert labels.numpy().tolist() == [[0, 1], [0, 0]]
    with pytest.raises(
        ValueError, match=r"Columns must be the labels, \['x', 'y'\], got \['y', 'z'\]"
    ):
        task.fit(pd.Series(A[:2]), held.rename(columns={"x": "z"}))


@pytest.mark.extended
def test_lists_of_arrays(reader):
    """As data sets of ``datasets`` in the format of NumPy have them."""
    backbone, tokenizer = reader.backbone, reader.tokenizer
    several = bf.MultiLabelClassifier(backbone, tokenizer, ["a", "b"], pair=False)
    names = [np.array(["a"]), np.array(["b", "a"]), np.array([], str)]
    for labels in (names, [np.array([1, 0]), np.array([1, 1]), np.array([0, 0])]):
        [(_, found)] = several.text_batches(A, labels)
        assert found.numpy().tolist() == [[1, 0], [1, 1], [0, 0]]
    tagger = bf.TokenTagger(backbone, tokenizer, ["O", "X"])
    words = [["it", "is"], ["good"]]
    answers = tagger.predict(list(map(np.array, words)))
    assert [[word["word"] for word in text] for text in answers] == words
    found = tagger.evaluate(list(map(np.array, words)), [np.array([0, 1]), np.array([1])])
    assert found == tagger.evaluate(words, [["O", "X"], ["X"]])


def test_integers_are_indices_also_where_names_are_numbers(reader, recwarn):
    stars = bf.TextClassifier(reader.backbone, reader.tokenizer, ["1", "2", "3"], pair=False)
    targets = stars._parts.targets
    targets.check(["1", "3"])
    targets.check(np.array([0]))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="integer 2 is read as the index of the label '3'"):
        targets.check(pd.Series([0, 2]).to_numpy())


@pytest.mark.full
def test_questions_and_words(smallest):
    qa = bf.SpanQA.from_pretrained(smallest)
    asked = pd.DataFrame({"question": ["good"] * 2, "context": ["a good film"] * 2, "n": [1, 2]})
    gold = pd.DataFrame({"answer": ["film"] * 2, "answer_start": [7] * 2}, index=[5, 6])
    scores = qa.evaluate(asked, gold, return_dict=True)
    lists = asked[["question", "context"]].to_dict("list")
    assert scores == qa.evaluate(lists, gold.to_dict("list"), return_dict=True)
    assert qa.predict(asked) == qa.predict(lists)
    tagger = bf.TokenTagger.from_pretrained(smallest, tags=["O", "B-PER", "I-PER"])
    rows = pd.DataFrame({"text": [["a", "film"], ["it"]], "label": [["O", "B-PER"], ["O"]]})
    expected = tagger.evaluate(rows["text"].tolist(), rows["label"].tolist())
    assert tagger.evaluate(rows["text"], rows["label"]) == expected
    assert tagger.evaluate(rows) == expected
    assert tagger.predict(rows["text"]) == tagger.predict([["a", "film"], ["it"]])
    assert tagger.entities(rows["text"]) == tagger.entities([["a", "film"], ["it"]])
    # One text, as one string.
    assert tagger.predict("a film") == tagger.predict(["a film"])
    assert tagger.entities("a film") == tagger.entities(["a film"])
    assert qa.predict({name: values[0] for name, values in lists.items()}) == qa.predict(asked[:1])


@pytest.mark.full
def test_one_text_gets_a_list_of_one_answer(reader, embedder):
    (answer,) = reader.predict("a good film")
    assert answer["label"] == reader.predict(["a good film"])[0]["label"]
    assert reader.predict(b"a good film")[0]["label"] == answer["label"]
    assert embedder.predict("a good film").shape == (1, 32)
    with pytest.raises(ValueError, match="got a single string"):
        reader.fit("a good film", ["positive"])
