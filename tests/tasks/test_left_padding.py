"""A classifier whose tokenizer pads on the left, and whose segments and positions are relative."""

import copy
import dataclasses
import io
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import bertfam_tf as bf
from tests import published
from tests.seeding import seed
from tests.selection import in_full

GOLDEN = Path(__file__).parent.parent / "goldens" / "xlnet" / "heads" / "sequence"
TEXTS = ["a cab", "bad", "", "a bad cab a bad cab a cab", "abba"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = Path(shutil.copytree(GOLDEN, tmp_path_factory.mktemp("xlnet") / "checkpoint"))
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a bad cab", "abba", "a cad"] * 9),
        model_writer=made,
        vocab_size=30,
        hard_vocab_limit=False,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
        user_defined_symbols=["<eop>", ","],
        minloglevel=2,
    )
    (directory / "spiece.model").write_bytes(made.getvalue())
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "XLNetTokenizer"}')
    return directory


@pytest.fixture(scope="module")
def classifier(checkpoint):
    return bf.TextClassifier.from_pretrained(checkpoint, pair=False)


@pytest.mark.extended
def test_rows_are_padded_on_the_left(classifier):
    inputs = classifier.preprocess({"text": np.array(TEXTS, object)})
    mask = inputs["padding_mask"].numpy()
    assert (np.diff(mask, axis=1) >= 0).all()
    assert mask[:, 0].tolist() == [0, 0, 0, 1, 0]
    ids = classifier.tokenizer.special_ids
    assert (inputs["token_ids"].numpy()[:, -2:] == [ids["sep"], ids["cls"]]).all()
    assert (inputs["segment_ids"].numpy()[:, -1] == 2).all()


@pytest.mark.full
def test_the_batch_does_not_change_answers(classifier):
    together = [answer["scores"] for answer in classifier.predict(TEXTS)]
    alone = [classifier.predict([text])[0]["scores"] for text in TEXTS]
    np.testing.assert_allclose(together, alone, atol=2e-6)
    assert len({tuple(scores.round(4)) for scores in together}) == len(TEXTS)


@pytest.mark.full
def test_text_pairs(checkpoint):
    task = bf.TextClassifier.from_pretrained(checkpoint, pair=True)
    one, other = task.predict((TEXTS, TEXTS[::-1])), task.predict((TEXTS[::-1], TEXTS))
    assert not np.allclose([a["scores"] for a in one], [a["scores"] for a in other], atol=1e-4)


@pytest.mark.full
def test_fit_save_and_export(checkpoint, tmp_path):
    seed(0)
    task = bf.TextClassifier.from_pretrained(checkpoint, labels=["yes", "no"], dropout=0.0)
    task.compile(keras.optimizers.Adam(0.01))
    labels = ["yes", "no", "no", "yes", "no"]
    history = task.fit(TEXTS, labels, epochs=8, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2
    task.save(tmp_path / "task")
    again = bf.load(tmp_path / "task")
    expected = [answer["scores"] for answer in task.predict(TEXTS)]
    np.testing.assert_array_equal([a["scores"] for a in again.predict(TEXTS)], expected)
    task.export(tmp_path / "export")  # compares what it wrote with the task


@pytest.mark.extended
def test_attention_does_not_depend_on_the_padding(classifier):
    """Tokens are counted from the first one."""
    answer = classifier.signatures(attention=24)["attention"].function
    together = answer({"text": tf.constant(TEXTS)})
    for row, text in enumerate(TEXTS):
        alone = answer({"text": tf.constant([text])})
        assert together["count"][row] == alone["count"][0]
        np.testing.assert_array_equal(together["tokens"][row], alone["tokens"][0])
        np.testing.assert_allclose(together["attention"][row], alone["attention"][0], atol=1e-6)
        count = int(alone["count"][0])
        sums = alone["attention"][0].numpy().sum(axis=-1)
        np.testing.assert_allclose(sums[:, :, :count], 1, atol=1e-5)


@pytest.mark.parametrize(
    "family", in_full([*published.families("TextClassifier"), "spanbert", "tinybert"], ["bert"])
)
def test_answers_of_any_tokenizer_that_pads_on_the_left(family):
    """A first token that is padding would make an answer depend on the batch."""
    left = copy.copy(published.tokenizer(family))
    left.layout = dataclasses.replace(left.layout, pad_left=True)
    backbone = published.task("TextClassifier", family).backbone
    task = bf.TextClassifier(backbone, left, labels=published.LABELS, max_length=48)
    together = [answer["scores"] for answer in task.predict(published.TEXTS)]
    alone = [task.predict([text])[0]["scores"] for text in published.TEXTS]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert len({tuple(scores.round(6)) for scores in together}) == len(published.TEXTS)
    assert left.layout.pad_left
    # Tasks of one model must have the same tokenizer.
    other = bf.TextRegressor(backbone, left, max_length=48)
    assert bf.MultiTask({"one": task, "other": other}).tokenizer is task.tokenizer
    # Copies have no tables of their own.
    assert other.tokenizer._texts is left._texts
    left.layout = dataclasses.replace(left.layout, truncate_left=True)
    changed = bf.TextRegressor(backbone, left, max_length=48)
    assert changed.tokenizer.layout.truncate_left
    of_another_class = bf.TextRegressor(backbone, left, max_length=48)
    of_another_class.tokenizer = copy.copy(task.tokenizer)
    of_another_class.tokenizer.__class__ = type("Another", (type(task.tokenizer),), {})
    assert of_another_class.tokenizer.get_config() == task.tokenizer.get_config()
    for wrong in (changed, of_another_class):
        with pytest.raises(ValueError, match="'one' and 'other' must have the same tokenizer"):
            bf.MultiTask({"one": task, "other": wrong})
