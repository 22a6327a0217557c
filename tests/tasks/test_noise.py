"""Ordinary use says nothing that a user cannot act on: no warnings, no lines of TensorFlow's."""

import os
import re
import subprocess
import sys
import warnings

import pytest
from tensorflow.python.eager.polymorphic_function import polymorphic_function

import bertfam_tf as bf
from bertfam_tf.export import export_saved_model
from bertfam_tf.user_warnings import UntrainedWarning
from tests.tasks.test_causal_lm import _model

TEXTS = ["a good film", "bad movie", "it is", "very dull", "plot"]
LABELS = ["positive", "negative", "neutral", "negative", "neutral"]
ASKED = {"question": ["good"] * 5, "context": ["a good film it is"] * 5}
GOLD = {"answer": ["film"] * 5, "answer_start": [7] * 5}
TAGS = ["O", "B-PER", "I-PER"]


@pytest.fixture
def quiet(monkeypatch, capfd):
    """Fails the test that prints to stderr, from C++ as well, or warns."""
    # TensorFlow warns of a function twice in a process, then never again.
    manager = polymorphic_function._FrequentTracingDetectorManager()
    monkeypatch.setattr(polymorphic_function, "_frequent_tracing_detector_manager", manager)
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", UntrainedWarning)  # the tests train
        yield
    assert [str(warning.message) for warning in found] == []
    assert capfd.readouterr().err == ""


def _sizes():
    return ([TEXTS[0] * n] * n for n in range(1, 6))


@pytest.mark.full
def test_a_classifier(quiet, classifier):
    classifier.fit(TEXTS, LABELS, validation_data=(TEXTS, LABELS), batch_size=2, verbose=0)
    classifier.evaluate(TEXTS, LABELS, verbose=0)
    for texts in _sizes():
        classifier.predict(texts)


@pytest.mark.full
def test_several_small_tasks(quiet, smallest):
    for _ in range(5):
        task = bf.TextClassifier.from_pretrained(smallest)
        task.fit(TEXTS, LABELS, verbose=0)
        task.predict(TEXTS)


@pytest.mark.full
def test_documents(quiet, smallest):
    qa = bf.SpanQA.from_pretrained(smallest)
    qa.fit(ASKED, GOLD, verbose=0)
    qa.evaluate(ASKED, GOLD)
    for texts in _sizes():
        qa.predict({"question": texts, "context": texts})
    tagger = bf.TokenTagger.from_pretrained(smallest, tags=TAGS)
    tagger.fit(["a good film"], ["O O B-PER"], verbose=0)
    for texts in _sizes():
        tagger.predict(texts)
        tagger.entities(texts)


@pytest.mark.full
def test_a_head_of_ones_own_choice(quiet, smallest):
    task = bf.MaskedLM.from_pretrained(smallest)
    task.fit(TEXTS, verbose=0)
    for n in range(1, 6):
        task.fill(["a [MASK] film" * n] * n, top_k=n)


@pytest.mark.full
def test_a_language_model(quiet):
    lm = _model()
    lm.fit(TEXTS, batch_size=2, verbose=0)
    for n, texts in enumerate(_sizes(), 1):
        lm.predict(texts)
        lm.perplexity(texts)
        lm.generate(texts, max_new_tokens=n)


@pytest.mark.full
def test_an_export(quiet, embedder, tmp_path):
    export_saved_model(embedder, tmp_path)


@pytest.mark.parametrize("task", [bf.SpanQA, bf.TextEmbedder, bf.MaskedLM])
def test_what_is_not_read_does_not_learn_and_is_kept(smallest, tmp_path, task):
    task = task.from_pretrained(smallest)
    pooler = {v.path for v in task.backbone.get_layer("pooler").weights}
    assert pooler
    assert not pooler & {v.path for v in task.trainable_variables}
    assert not pooler & {v.path for v in task.trainable_weights}
    assert pooler <= {v.path for v in task.weights}
    # The same backbone under another head.
    other = bf.TextClassifier(task.backbone, task.tokenizer, ["no", "yes"])
    assert pooler <= {v.path for v in other.trainable_variables}


def _python(*arguments, **environment):
    plain = {name: v for name, v in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=plain | environment, check=True
    )


@pytest.mark.full
def test_commands(smallest, tmp_path):
    """From a process of its own, as TensorFlow reads the level when it is imported."""
    bf.TextClassifier.from_pretrained(smallest, pair=False).save(tmp_path / "task")
    told = _python("-m", "bertfam_tf.cli", "predict", tmp_path / "task", "a good film")
    assert told.stdout.count("\n") == 1
    assert told.stderr == ""
    # A line for each batch of a progress bar would be on stdout.
    told = _python("-m", "bertfam_tf.cli", "export", tmp_path / "task", tmp_path / "export")
    assert told.stdout.strip() == str(tmp_path / "export" / "1")
    assert told.stderr == ""


def test_the_user_says_how_much_is_logged():
    shown = "import os, bertfam_tf; print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))"
    assert re.fullmatch("[13]\n", _python("-c", shown).stdout)
    assert _python("-c", shown, TF_CPP_MIN_LOG_LEVEL="0").stdout == "0\n"
    # Once TensorFlow is imported it has read the level, and so have those who look at it.
    stands_in = "import sys; sys.modules['tensorflow'] = sys; "
    assert _python("-c", stands_in + shown).stdout == "None\n"
