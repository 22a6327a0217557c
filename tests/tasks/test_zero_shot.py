"""Zero-shot classification: against a classifier of pairs, labels of calls, what is refused."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.export.runtime import ServingError, load
from tests import published

NLI = ["contradiction", "neutral", "entailment"]
LABELS = ["film", "the cast", "plot"]
TEXTS = ["a good film , was it not ?", "the cast", "", "🙂 [SEP] é", "the plot " * 100]
TEMPLATE = "it is {} !"


@pytest.fixture(scope="module")
def nli():
    task = published.task("TextClassifier", "bert")
    return bf.TextClassifier(task.backbone, task.tokenizer, NLI, pair=True, max_length=48)


@pytest.fixture(scope="module")
def zero_shot(nli, tmp_path_factory):
    path = tmp_path_factory.mktemp("nli") / "model"
    nli.save_pretrained(path)
    return bf.ZeroShotClassifier.from_pretrained(path, LABELS, template=TEMPLATE)


def _expected(nli, labels, multi_label, texts=TEXTS[:4]):
    """From the classifier's probabilities of each pair."""
    rows = []
    for text in texts:
        pairs = ([text] * len(labels), [TEMPLATE.format(label) for label in labels])
        log = np.log([answer["scores"] for answer in nli.predict(pairs)])
        if multi_label or len(labels) == 1:
            rows.append(np.exp(log[:, 2]) / (np.exp(log[:, 0]) + np.exp(log[:, 2])))
        else:
            # Logits are these up to a constant of each pair.
            given = nli.preprocess(
                {"text": tf.constant(pairs[0]), "text_pair": tf.constant(pairs[1])}
            )
            logits = nli(given, training=False).numpy()[:, 2]
            rows.append(np.exp(logits) / np.exp(logits).sum())
    return np.array(rows)


@pytest.mark.extended
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [None, ["good"], ["a", "b", "film", "it", "not"]], ids=str)
def test_scores(nli, zero_shot, labels, multi_label):
    zero_shot.multi_label = multi_label
    try:
        found = zero_shot.predict(TEXTS, labels, batch_size=2)
    finally:
        zero_shot.multi_label = False
    names = labels or LABELS
    scores = np.array([answer["scores"] for answer in found])
    np.testing.assert_allclose(scores[:4], _expected(nli, names, multi_label), atol=2e-6)
    assert [answer["label"] for answer in found] == [names[i] for i in scores.argmax(1)]
    if not multi_label and len(names) > 1:
        np.testing.assert_allclose(scores.sum(1), 1, atol=1e-5)


@pytest.mark.extended
def test_one_graph_for_all_labels(zero_shot):
    zero_shot.predict(TEXTS[:1])
    before = len(zero_shot._graphs)
    for i in range(3):
        zero_shot.predict(TEXTS[:1], ["a", f"label {i}"])
    assert len(zero_shot._graphs) == before


@pytest.mark.full
def test_export(zero_shot, tmp_path):
    served = load(zero_shot.export(tmp_path / "out"))
    texts = np.array([text.encode() for text in TEXTS], object)
    labels = np.array([[b"good", b"film"]] * len(TEXTS), object)
    named = served.run("zero_shot", {"text": texts, "labels": labels})
    for found, answers in (
        (served.run("serving_default", {"text": texts}), zero_shot.predict(TEXTS)),
        (named, zero_shot.predict(TEXTS, ["good", "film"])),
    ):
        assert [label.decode() for label in found["label"]] == [a["label"] for a in answers]
        np.testing.assert_allclose(found["scores"], [a["scores"] for a in answers], atol=2e-6)
    ids = dict.fromkeys(zero_shot.packed_specs, np.zeros((2, 0, 3), "int32"))
    with pytest.raises(ServingError, match="at least one label for each text"):
        served.run("zero_shot", {"text": texts, "labels": labels[:, :0]})
    with pytest.raises(ServingError, match="after the batch must be at least 1"):
        served.run("ids", ids)
    zero_shot.save(tmp_path / "saved")
    again = bf.load(tmp_path / "saved")
    assert (again.labels, again.template, again.nli_labels) == (LABELS, TEMPLATE, NLI)
    with pytest.raises(ValueError, match="ZeroShotClassifier takes a list of texts per example"):
        zero_shot.export_tflite(tmp_path / "out.tflite", inputs="ids")


@pytest.mark.extended
def test_mistakes(nli, zero_shot):
    made = bf.ZeroShotClassifier
    for labels, classes, options, message in (
        ([], NLI, {}, r"labels must be one or more texts, got \[\]"),
        (["a", 3], NLI, {}, "labels must be one or more texts"),
        (["a"], NLI, {"template": "none"}, "template must have {} once, got 'none'"),
        (["a"], ["yes", "no"], {}, "one class that begins with 'entail', got"),
        (["a"], ["entailment", "other"], {"multi_label": True}, "begins with 'contradict'"),
    ):
        with pytest.raises(ValueError, match=message):
            made(nli.backbone, nli.tokenizer, labels, classes, max_length=48, **options)
    with pytest.raises(ValueError, match=r"labels must be one or more texts, got \[''\]"):
        zero_shot.predict(TEXTS, [""])
    with pytest.raises(ValueError, match="has no default loss"):
        zero_shot.fit(TEXTS, ["a"] * len(TEXTS))


@pytest.mark.extended
def test_a_model_for_two_classes(nli):
    names = ["entailment", "not_entailment"]
    two = bf.TextClassifier(nli.backbone, nli.tokenizer, names, pair=True, max_length=48)
    shared = nli.backbone, nli.tokenizer
    made = bf.ZeroShotClassifier(*shared, LABELS, names, template=TEMPLATE, max_length=48)
    made.set_weights(two.get_weights())
    pairs = ([TEXTS[0]] * len(LABELS), [TEMPLATE.format(label) for label in LABELS])
    expected = [answer["scores"][0] for answer in two.predict(pairs)]
    made.multi_label = True
    np.testing.assert_allclose(made.predict(TEXTS[:1])[0]["scores"], expected, atol=2e-6)
    made.multi_label = False
    [answer] = made.predict(TEXTS[:1], LABELS[:1])
    assert answer["label"] == LABELS[0]
    np.testing.assert_allclose(answer["scores"], expected[:1], atol=2e-6)
