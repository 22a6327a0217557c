"""What the page makes of signatures: fields to fill in, and answers to read."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from bertfam_serve.ui_answers import (
    Field,
    MarkedText,
    NamedValue,
    Scores,
    TextPart,
    input_fields,
    questions,
    run_attention,
    run_example,
)
from bertfam_serve.ui_html import markup
from bertfam_tf.export.runtime import Code, ServingError


def strings(*items):
    return np.array([*items, None], object)[:-1]


def floats(*items):
    return np.array(items, np.float32)


def servable(inputs, outputs, **others):
    """Answers `outputs` to every request; `others` are further signatures' outputs."""
    asked = []
    signatures = {}
    for name in ("serving_default", *others):
        signatures[name] = meta_graph_pb2.SignatureDef()
        names = {"inputs": 1} if name == "classify" else inputs
        for field, rank in names.items():
            info = signatures[name].inputs[field]
            info.dtype = tf.string.as_datatype_enum
            for _ in range(rank):
                info.tensor_shape.dim.add(size=-1)

    def run(signature, given, *, timeout_ms=0):
        asked.append((signature, given))
        return {"serving_default": outputs, **others}[signature]

    return SimpleNamespace(signatures=signatures, run=run, asked=asked)


TEXT = {"text": 1}


def test_fields_in_the_order_in_which_one_reads():
    assert input_fields(servable({"context": 1, "question": 1}, {})) == [
        Field("question", False),
        Field("context", False),
    ]
    assert input_fields(servable({"text_pair": 1, "text": 1}, {}))[0].name == "text"
    assert input_fields(servable({"document": 1, "query": 1}, {}))[0].name == "query"
    assert input_fields(servable({"choices": 2, "question": 1}, {}))[1] == Field("choices", True)


def test_models_that_take_no_texts():
    ids = servable({"ids": 1}, {})
    ids.signatures["serving_default"].inputs["ids"].dtype = tf.int32.as_datatype_enum
    for model in (ids, servable({"text": 0}, {}), servable({"text": 3}, {})):
        with pytest.raises(ServingError, match="supports texts only") as caught:
            input_fields(model)
        assert caught.value.code == Code.INVALID_ARGUMENT
    del ids.signatures["serving_default"]
    with pytest.raises(ServingError, match="no signature serving_default"):
        input_fields(ids)


def test_signatures_of_several_tasks():
    """Each has its own name, and the entities of a tagger another one."""
    outputs = {"label": strings(b"good"), "scores": floats([0.9, 0.1])}
    marked = {"tokens": strings(b"Ada"), "count": np.array([1])}
    model = servable({"text": 1}, {}, film=outputs, names={}, names_entities=marked)
    del model.signatures["serving_default"]
    for definition in model.signatures.values():
        definition.method_name = "tensorflow/serving/predict"
    ids = model.signatures["ids"] = meta_graph_pb2.SignatureDef()
    ids.inputs["token_ids"].dtype = tf.int32.as_datatype_enum
    assert questions(model) == ["film", "names"]
    run_example(model, {"text": "a"}, "film")
    run_example(model, {"text": "a"}, "names")
    assert [name for name, _ in model.asked] == ["film", "names_entities"]
    assert questions(servable({"text": 1}, {})) == ["serving_default"]
    for name in ("film", "names", "names_entities"):
        del model.signatures[name]
    with pytest.raises(ServingError, match="no signature that takes texts"):
        questions(model)


def test_texts_are_one_row_of_bytes():
    model = servable({"question": 1, "choices": 2}, {"score": floats(1)})
    run_example(model, {"question": "Größe 🙂 \ud800", "choices": "one\n\n two \n"})
    ((_, given),) = model.asked
    assert given["question"].tolist() == ["Größe 🙂 ?".encode()]
    assert given["choices"].tolist() == [[b"one", b" two "]]


CONTEXT = "Überall 🙂 1889 & <b>"
ANSWERED = {
    "answer": strings(b"1889"),
    "start": np.array([10], np.int32),
    "end": np.array([14], np.int32),
    "score": floats(0.5),
}


def test_an_answer_in_its_context():
    best = {
        "n_best_answers": strings(b"1889", b"&", b"").reshape(1, 3),
        "n_best_scores": floats(0.5, 0.25, 0).reshape(1, 3),
    }
    model = servable({"question": 1, "context": 1}, ANSWERED | best)
    answer = run_example(model, {"question": "When?", "context": CONTEXT})
    assert answer == [
        NamedValue("answer", "1889"),
        MarkedText([TextPart("Überall 🙂 "), TextPart("1889", "answer", 0.5), TextPart(" & <b>")]),
        Scores("Best answers", [("1889", 0.5), ("&", 0.25)]),
    ]


def test_no_answer():
    outputs = ANSWERED | {"answer": strings(b""), "start": floats(-1), "end": floats(-1)}
    model = servable({"question": 1, "context": 1}, outputs)
    line, marked = run_example(model, {"question": "", "context": CONTEXT})
    assert line.value == "There is none in the context."
    assert marked == MarkedText([TextPart(CONTEXT)])


WORDS = {
    "tokens": strings(b"Anna", b"lives", b"").reshape(1, 3),
    "tags": strings(b"B-PER", b"O", b"").reshape(1, 3),
    "scores": floats(0.75, 1, 0).reshape(1, 3),
    "offsets": np.array([[[0, 4], [5, 10], [-1, -1]]], np.int32),
    "count": np.array([2], np.int32),
}
SPANS = {
    "text": strings(b"Anna", b"").reshape(1, 2),
    "type": strings(b"PER", b"").reshape(1, 2),
    "score": floats(0.5, 0).reshape(1, 2),
    "start": np.array([[0, -1]], np.int32),
    "end": np.array([[4, -1]], np.int32),
    "count": np.array([1], np.int32),
}


@pytest.mark.parametrize(
    ("model", "label", "score"),
    [
        (servable(TEXT, WORDS), "B-PER", 0.75),
        (servable(TEXT, WORDS, entities=SPANS), "PER", 0.5),
    ],
)
def test_marks_of_words_and_of_entities(model, label, score):
    assert run_example(model, {"text": "Anna lives."}) == [
        MarkedText([TextPart("Anna", label, score), TextPart(" lives.")])
    ]


def test_spans_that_do_not_fit_the_text_are_passed_over():
    spans = SPANS | {
        "type": strings(b"A", b"B", b"C", b"D").reshape(1, 4),
        "score": floats(1, 1, 1, 1).reshape(1, 4),
        "start": np.array([[0, 2, 3, 6]], np.int32),
        "end": np.array([[3, 5, 5, 99]], np.int32),
    }
    (marked,) = run_example(servable(TEXT, spans), {"text": "abcdefgh"})
    assert [(part.text, part.label) for part in marked.parts] == [
        ("abc", "A"),
        ("de", "C"),
        ("fgh", ""),
    ]


LABEL = {"label": strings(b"good"), "scores": floats(0.25, 0.75).reshape(1, 2)}


def test_scores_of_labels_by_name():
    classes = {"classes": strings(b"bad", b"good").reshape(1, 2), "scores": LABEL["scores"]}
    model = servable({"text": 1, "text_pair": 1}, LABEL, classify=classes)
    answer = run_example(model, {"text": "a", "text_pair": "ü"})
    assert answer == [
        NamedValue("label", "good"),
        Scores("Scores", [("good", 0.75), ("bad", 0.25)]),
    ]
    (example,) = model.asked[1][1]["inputs"]
    features = tf.train.Example.FromString(example).features.feature
    assert features["text_pair"].bytes_list.value == ["ü".encode()]


def test_scores_of_labels_without_names():
    items = [("good", 0.75), ("label 0", 0.25)]
    for others in ({}, {"classify": {"classes": strings(b"x").reshape(1, 1)}}, {"classify": {}}):
        answer = run_example(servable(TEXT, LABEL, **others), {"text": "a"})
        assert answer[1] == Scores("Scores", items)


def test_other_answers():
    chosen = {"scores": LABEL["scores"], "chosen": np.array([[False, True]])}
    assert run_example(servable(TEXT, chosen), {"text": ""})[0] == NamedValue("labels", "label 1")
    assert run_example(servable(TEXT, {"score": floats(3.25)}), {"text": ""}) == [
        NamedValue("score", "3.25")
    ]
    choice = {
        "choice": np.array([1]),
        "text": strings(b"b"),
        "scores": floats(0.25, 0.75).reshape(1, 2),
    }
    answer = run_example(
        servable({"question": 1, "choices": 2}, choice), {"question": "", "choices": "a\nb"}
    )
    assert answer == [NamedValue("choice", "b"), Scores("Choices", [("b", 0.75), ("a", 0.25)])]
    rest = {"embedding": np.arange(30, dtype=np.float32).reshape(1, 30), "text": strings(b"\xff")}
    embedding, text = run_example(servable(TEXT, rest), {"text": ""})
    assert embedding.value.startswith("0, 1, 2, ")
    assert embedding.value.endswith("19, … and 10 more")
    assert text == NamedValue("text", "\ufffd")


# --------------------------------------------------------------------------------------- as HTML


def test_markup_of_texts_is_text():
    evil = '<script>alert("1")</script>&amp;'
    answer = [
        MarkedText([TextPart(evil, evil, 0.5), TextPart(evil)]),
        Scores(evil, [(evil, 0.5)]),
        NamedValue(evil, evil),
    ]
    tags = re.findall(r"<\s*/?\s*([a-z0-9]+)", markup(answer))
    assert set(tags) == {"section", "div", "mark", "small", "h2", "span", "i", "b"}
    attributes = re.findall(r'title="([^"]*)"', markup(answer))
    assert len(attributes) == 2


def test_bars_stay_in_their_place():
    html = markup([Scores("s", [("a", 1.5), ("b", 0.123), ("c", -1.0), ("d", float("nan"))])])
    assert re.findall("width: ([^%]*)%", html)[:3] == ["100.0", "12.3", "0.0"]
    assert "12.3%" in html


def test_attention_on_the_page():
    layers = np.zeros((1, 2, 2, 4, 4), "float32")
    layers[0, :, 0, :2, :2] = 0.5  # the second head is missing
    outputs = {
        "tokens": np.array([[b"[CLS]", b"<b>", b"", b""]], object),
        "count": np.array([2]),
        "attention": layers,
    }
    model = servable({"text": 1}, {}, attention=outputs)
    tokens, found = run_attention(model, {"text": "<b>"})
    assert tokens == ["[CLS]", "<b>"]
    assert [each.shape for each in found] == [(1, 2, 2)] * 2
    assert run_attention(servable({"text": 1}, {}), {"text": "a"}) is None


@pytest.mark.parametrize("count", [2, 15, 100])
def test_many_scores_are_folded(count):
    scores = Scores("Scores", [(f"label {i}", 1 / (i + 1)) for i in range(count)])
    shown, _, folded = markup([scores]).partition("<details>")
    assert shown.count('class="bar"') == min(count, 15)
    assert folded.count('class="bar"') == max(count - 15, 0)
    assert ("<summary>85 more</summary>" in folded) == (count == 100)
