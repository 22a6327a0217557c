"""Keras' callbacks, dtype policies and weights in ``fit`` without ``compile``, and quantization."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf

TEXTS = ["a fine film", "it was dull", "so so", "fine"]
LABELS = ["positive", "negative", "neutral", "positive"]


@pytest.mark.extended
def test_a_callback_sets_the_rate_of_the_default_optimizer(classifier):
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = classifier.fit(TEXTS, LABELS, epochs=2, callbacks=scheduler, verbose=0).history
    np.testing.assert_allclose(history["learning_rate"], [5e-5 / 2, 5e-5 / 4])
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=100)
    classifier.fit(TEXTS, LABELS, epochs=3, callbacks=[plateau], verbose=0)
    np.testing.assert_allclose(classifier.optimizer.learning_rate, 5e-7)  # twice a tenth
    classifier.fit(TEXTS, LABELS, verbose=0)
    assert classifier.optimizer.learning_rate == 0  # a schedule's end


@pytest.mark.extended
def test_a_rate_that_a_schedule_decides_is_refused_before_training(classifier):
    weights = classifier.get_weights()
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    classifier.compile(bf.optimizers.adamw(1e-3, total_steps=9))
    with pytest.raises(ValueError, match="ReduceLROnPlateau sets the learning rate, but"):
        classifier.fit(TEXTS, LABELS, callbacks=[plateau], verbose=0)
    np.testing.assert_equal(classifier.get_weights(), weights)
    classifier.compile(bf.optimizers.adamw(1e-3))
    classifier.fit(TEXTS, LABELS, callbacks=[plateau], verbose=0)


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
def test_pure_half_precision_learns_with_the_default_optimizer(policy, smallest):
    keras.config.set_dtype_policy(policy)
    try:
        task = bf.TextClassifier.from_pretrained(smallest, dropout=0.0, attention_dropout=0.0)
        task.compile(bf.optimizers.adamw(1e-3))
        losses = task.fit(TEXTS, LABELS, epochs=8, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert {variable.dtype for variable in task.backbone.weights} == {policy}
    assert losses[-1] < losses[0] / 2
    moments = [m for pair in task.optimizer.moments.values() for m in pair]
    assert {moment.dtype for moment in moments} == {"float32"}


@pytest.mark.extended
def test_balanced_class_weights(classifier):
    expected = {0: 4 / 3, 1: 4 / 3, 2: 4 / 6}  # negative, neutral, positive
    numbers = [2, 0, 1, 2]
    rows = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    for data in ((TEXTS, LABELS), (TEXTS, numbers), (rows,), (rows.batch(3),)):
        assert classifier.balanced_class_weights(*data) == pytest.approx(expected)
    assert classifier.balanced_class_weights(TEXTS[:2], LABELS[:2])[1] == 1  # without examples
    classifier.compile(keras.optimizers.SGD(0.0))
    losses = [
        classifier.fit(TEXTS, LABELS, class_weight=weights, verbose=0).history["loss"]
        for weights in ("balanced", expected, {np.int64(i): x for i, x in expected.items()})
    ]
    assert losses[0] == losses[1] == losses[2]


def test_class_weights_by_what_labels_may_be(reader):
    given = reader.backbone, reader.tokenizer
    task = bf.TextClassifier(*given, ["no", "yes"])
    for weights in ({False: 1.0, True: 3.0}, {np.True_: 3.0}, {"yes": 3.0}, {1: 3.0}):
        assert task.class_weights(weights) == {0: 1.0, 1: 3.0}
    choice = bf.MultipleChoice(*given, 2)
    for weights in ({"B": 3.0}, {"1": 3.0}, {np.int64(1): 3.0}, {0: 1.0, 1: 3.0}):
        assert choice.class_weights(weights) == {0: 1.0, 1: 3.0}
    with pytest.raises(ValueError, match="class_weight '2' is not one of: 0, 1, A, B"):
        choice.class_weights({2: 3.0})
    with pytest.raises(ValueError, match="class_weight 'True' is not one of"):
        reader.class_weights({True: 3.0})


@pytest.mark.extended
def test_class_weights_that_are_refused(classifier, embedder):
    with pytest.raises(ValueError, match="class_weight must be balanced"):
        classifier.fit(TEXTS, LABELS, class_weight="equal")
    with pytest.raises(ValueError, match="one label for each text, not TextEmbedder"):
        embedder.balanced_class_weights(TEXTS, LABELS)
    endless = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).repeat()
    with pytest.raises(ValueError, match="a data set that ends"):
        classifier.fit(endless, class_weight="balanced", steps_per_epoch=1)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("TokenTagger", TEXTS[:1], ["O O O"]),
        (
            "SpanQA",
            {"question": ["?"], "context": ["a film"]},
            {"answer": ["a"], "answer_start": [0]},
        ),
        ("Reranker", {"query": ["a"], "document": [["b", "c"]]}, [[0, 1]]),
        ("TextRegressor", TEXTS[:1], [1.0]),
    ],
)
def test_class_weights_are_for_one_label_of_each_example(name, x, y, reader):
    options = {"tags": ["O", "B-X"]} if name == "TokenTagger" else {}
    task = getattr(bf, name)(reader.backbone, reader.tokenizer, **options)
    with pytest.raises(ValueError, match="class_weight is for one label of each example"):
        task.fit(x, y, class_weight={0: 1.0, 1: 5.0}, verbose=0)


@pytest.mark.extended
def test_class_weights_are_for_a_single_task(classifier, embedder):
    other = bf.TextRegressor(classifier.backbone, classifier.tokenizer)
    several = {"a": (TEXTS, LABELS), "b": (TEXTS, [1.0] * 4)}
    for model, data in (
        (bf.EmbedderTrainer(embedder, "cosent"), ((TEXTS, TEXTS), [0.0, 1.0, 0.0, 1.0])),
        (bf.MultiTask({"a": classifier, "b": other}), (several,)),
    ):
        with pytest.raises(ValueError, match="class_weight is for one label of each example"):
            model.fit(*data, class_weight={"positive": 2.0}, verbose=0)


@pytest.mark.extended
def test_predict_of_nothing(reader, embedder):
    assert reader.predict([]) == reader.predict({"text": []}) == reader.predict(np.array([])) == []
    assert embedder.predict([]).shape == (0, 32)
    assert bf.TextClassifier(reader.backbone, reader.tokenizer, ["a", "b"]).predict([]) == []


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_quantization_in_place_is_refused(embedder, recwarn):
    inputs = keras.Input((None,), dtype="int32", name="token_ids")
    outputs = embedder.backbone({"token_ids": inputs, "padding_mask": inputs})["first_token"]
    for model in (embedder, embedder.backbone):  # without Keras' warnings about its own layers
        with pytest.raises(ValueError, match=r"export.*dtype='int8'"):
            model.quantize("int8")
    assert not recwarn.list
    with pytest.raises(ValueError, match=r"export.*dtype='int8'"):
        keras.Model(inputs, outputs).quantize("int8")
    assert embedder.predict(["fine"]).any()
