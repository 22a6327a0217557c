"""Tasks on XLM, whose texts have a language."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.checkpoints import Checkpoint, convert

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


def test_convert_keeps_the_languages(checkpoint, tmp_path):
    convert(checkpoint, tmp_path / "out")
    assert Checkpoint(tmp_path / "out").languages == {"de": 2, "en": 0, "fr": 1}
