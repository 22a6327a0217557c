"""Two replicas: `tf.distribute` needs its devices before TensorFlow starts, so in a process.

Tasks are built in a strategy's scope and used outside of it, as Keras' guides do.
"""

import subprocess
import sys
import textwrap

import pytest

from tests.selection import in_full

PREAMBLE = """
    import sys
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)

    import keras
    import bertfam_tf as bf

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    quiet = dict(dropout=0.0, attention_dropout=0.0)
    texts = ["a good film", "bad movie", "it is", "very dull", "plot"] * 2
    labels = ["positive", "negative", "neutral", "negative", "neutral"] * 2
    rows = {
        "text": texts,
        "choices": [["good", "bad film"], ["it", ""], ["a", "the"], ["we", "you"], ["i", "!"]] * 2,
    }
    short = dict(batch_size=4, verbose=0)

    def make(cls, *args, compiled=True, **kwargs):
        keras.utils.set_random_seed(0)
        task = cls.from_pretrained(sys.argv[1], *args, **quiet, **kwargs)
        if compiled:
            task.compile(keras.optimizers.SGD(0.1))
        return task
"""
CLASSIFIER = """
    one = make(bf.TextClassifier)
    with strategy.scope():
        both = make(bf.TextClassifier)
    losses = [
        task.fit(texts, labels, shuffle=False, **short).history["loss"] for task in (one, both)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    # By tokens: the budget is that of all replicas.
    losses = [
        task.fit(texts, labels, shuffle=False, batch_tokens=24, verbose=0).history["loss"]
        for task in (one, both)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    scores = [np.stack([a["scores"] for a in task.predict(texts)]) for task in (one, both)]
    np.testing.assert_allclose(*scores, atol=1e-3)
    assert isinstance(both.backbone.weights[0].value, tf.distribute.DistributedValues)

    # Compiled, saved and exported outside, and built from what was saved.
    both.compile("adam", metrics=["accuracy"])
    both.fit(texts, labels, validation_data=(texts, labels), **short)
    both.save(sys.argv[2] + "/saved")
    both.export(sys.argv[2] + "/export")
    with strategy.scope():
        again = bf.load(sys.argv[2] + "/saved")
    scores = [np.stack([a["scores"] for a in task.predict(texts)]) for task in (both, again)]
    np.testing.assert_allclose(*scores, atol=1e-5)
    again.evaluate(texts, labels, **short)
    again.fit(texts, labels, **short)
    try:
        again.compile(keras.optimizers.SGD(0.1))
    except ValueError as error:
        assert "outside of the scope of the strategy" in str(error), error
    else:
        raise AssertionError("an optimizer of another strategy was taken")
"""


# The batch is the first axis of every input, whatever stands behind it; ranks are of all rows.
CHOICES_AND_RANKS = """
    ones = make(bf.MultipleChoice, 2), make(bf.TextRegressor)
    with strategy.scope():
        boths = make(bf.MultipleChoice, 2), make(bf.TextRegressor)
    weights = np.arange(10.0)
    losses = [
        task.fit(rows, list("ABABA") * 2, sample_weight=weights, shuffle=False, **short).history[
            "loss"
        ]
        for task in (ones[0], boths[0])
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    scores = [np.stack([a["scores"] for a in task.predict(rows)]) for task in (ones[0], boths[0])]
    np.testing.assert_allclose(*scores, atol=1e-3)

    # No two alike: rounding would rank them.
    texts = [*rows["text"][:5], "film", "good movie", "it is a plot", "dull"]
    data = (texts, [3.0, 1.0, 2.0, 5.0, 4.0, 0.0, 1.0, 7.0, 2.5])
    found = [
        task.evaluate(*data, return_dict=True, **short) for task in (ones[1], boths[1], boths[1])
    ]
    for name in ("loss", "pearson", "spearman"):
        np.testing.assert_allclose(found[1][name], found[0][name], atol=1e-5, err_msg=name)
        assert found[2][name] == found[1][name]
    assert abs(found[0]["spearman"]) > 0.01
"""

# Documents of several windows: a batch of examples has any number of rows.
WINDOWS = """
    long = "a very long and dull film with a plot that is not good at all " * 3
    documents = [text if i % 3 else long + text for i, text in enumerate(texts)]
    asked = {"question": ["good"] * 10, "context": [f"{text} good" for text in documents]}
    starts = [text.find("good") for text in asked["context"]]
    found = {"answer": ["good"] * 10, "answer_start": starts}
    tags = [" ".join("O B-X".split()[i % 2] for i, _ in enumerate(t.split())) for t in documents]
    named = bf.strategy("mirrored")
    assert named.num_replicas_in_sync == 2
    for cls, args, options, x, y in (
        (bf.SpanQA, [], dict(max_length=24, stride=4), asked, found),
        (bf.TokenTagger, ["O B-X".split()], dict(max_length=16), documents, tags),
    ):
        one = make(cls, *args, **options)
        with named.scope():
            both = make(cls, *args, **options)
        for task in (one, both):
            keras.utils.set_random_seed(0)
            task.fit(x, y, shuffle=False, **short)
        metrics = [task.evaluate(x, y, return_dict=True, **short) for task in (one, both)]
        assert metrics[0].keys() == metrics[1].keys()
        for name, value in metrics[0].items():
            np.testing.assert_allclose(metrics[1][name], value, atol=1e-5, err_msg=name)
        answers = [task.predict(x, batch_size=3) for task in (one, both)]
        flat = [tf.nest.flatten(each) for each in answers]
        assert len(flat[0]) == len(flat[1]) > 10
        for a, b in zip(*flat, strict=True):
            if isinstance(a, str):
                assert a == b
            else:
                np.testing.assert_allclose(a, b, atol=1e-5)
"""

# Lists of documents, and several texts of an example.
LISTS = """
    lists = {"query": texts, "document": [["good", "a film"], ["bad"]] * (len(texts) // 2)}
    marks = [[1, 0], [0.5]] * (len(texts) // 2)
    pairs = {"text": texts, "text_pair": [text[::-1] for text in texts]}
    similar = [i / 10 for i in range(len(texts))]

    def trained(kind):
        if kind == "listwise":
            task = make(bf.Reranker, objective=kind, compiled=False)
            model, data = task, (lists, marks)
        else:
            task = make(bf.TextEmbedder, compiled=False)
            model, data = bf.EmbedderTrainer(task, kind), (pairs, similar)
        model.compile(keras.optimizers.SGD(0.1))
        keras.utils.set_random_seed(0)
        model.fit(*data, batch_size=4, shuffle=False, verbose=0)
        return [v.numpy() for v in task.trainable_variables]

    for kind in ("listwise", "cosine"):
        one = trained(kind)
        with strategy.scope():
            both = trained(kind)
        for a, b in zip(one, both, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
"""

# Each step is of one task, in all replicas.
SEVERAL = """
    def trained():
        keras.utils.set_random_seed(0)
        backbone = bf.load_backbone(sys.argv[1], **quiet)
        tokenizer = bf.load_tokenizer(sys.argv[1])
        model = bf.MultiTask({
            "film": bf.TextClassifier(backbone, tokenizer, labels=["a", "b"]),
            "score": bf.TextRegressor(backbone, tokenizer, pair=True),
            "words": bf.TokenTagger(backbone, tokenizer, tags=["O", "B-X"]),
        })
        model.compile(keras.optimizers.SGD(0.1))
        data = {
            "film": (texts, ["a", "b"] * 5),
            "score": ((texts, texts[::-1]), [0.1, 0.2, 0.3, 0.4, 0.5] * 2),
            "words": ([text.split() for text in texts], [["O"] * len(t.split()) for t in texts]),
        }
        history = model.fit(data, batch_size=4, seed=1, validation_data=data, verbose=0).history
        found = {**history, **model.evaluate(data, verbose=0)}
        found["score"].pop("spearman")  # rounding ranks scores that are alike
        return {name: value for name, value in found.items() if "spearman" not in name}

    one = trained()
    with strategy.scope():
        both = trained()
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(both), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
"""

# What compiles itself, in every task; verbs of their own beside it.
THE_OTHERS = """
    from bertfam_tf import heads
    from bertfam_tf.data import segments
    from bertfam_tf.training import StreamLM

    asked = {"question": ["good"] * 8, "context": ["a good film it is"] * 8}
    found = {"answer": ["film"] * 8, "answer_start": [7] * 8}
    tags = ["O O B-PER"] * 8
    words = ["a good film"] * 8
    with strategy.scope():
        qa = make(bf.SpanQA, compiled=False)
        tagger = make(bf.TokenTagger, ["O", "B-PER", "I-PER"], compiled=False)
        several = make(bf.MultiLabelClassifier, ["x", "y"], compiled=False)
        regressor = make(bf.TextRegressor, compiled=False)
        choice = make(bf.MultipleChoice, 2, compiled=False)
        masked = make(bf.MaskedLM, compiled=False)
        embedder = make(bf.TextEmbedder, compiled=False)
    qa.fit(asked, found, **short)
    qa.predict(asked), qa.evaluate(asked, found)
    tagger.fit(words, tags, validation_data=(words, tags), **short)
    tagger.predict(words), tagger.entities(words), tagger.evaluate(words, tags)
    # Fewer rows than two replicas share evenly.
    several.fit(texts[:5], [["x"], [], ["x", "y"], ["y"], []], verbose=0)
    several.evaluate(texts[:5], [["x"], [], ["x", "y"], ["y"], []], verbose=0)
    several.predict(texts[:5])
    regressor.fit(texts, list(range(10)), **short)
    regressor.predict(texts)
    choice.fit(rows, [0, 1] * 5, **short)
    choice.predict(rows), choice.evaluate(rows, [0, 1] * 5, **short)
    masked.fill("a [MASK] film"), masked.predict(["a [MASK] film"])
    assert embedder.predict(texts).shape == (10, 32)

    sys.path.insert(0, ".")
    from tests.tasks.test_causal_lm import _model

    with strategy.scope():
        lm = _model()
    lm.fit(texts, **short)
    lm.perplexity(texts), lm.predict(texts), lm.generate("a", max_new_tokens=2)

    # The memory of each replica is that of its own rows.
    ids = np.random.default_rng(0).integers(0, 40, 129)
    shape = dict(vocab_size=40, hidden_size=16, num_heads=2, intermediate_size=32, num_layers=2)
    shape |= dict(mem_len=8, dropout=0.0, attention_dropout=0.0, cutoffs=())
    losses, perplexities = [], []
    for scope in (tf.distribute.get_strategy().scope(), strategy.scope()):
        keras.utils.set_random_seed(0)
        with scope:
            backbone = bf.build("transformer_xl", "tiny", **shape)
            learner = StreamLM(backbone, heads.build(backbone, "causal_lm"))
        learner.compile("sgd", jit_compile=False)
        losses.append(
            learner.fit(
                segments(ids, 4, 8), epochs=2, validation_data=segments(ids, 1, 8), verbose=0
            ).history
        )
        perplexities.append(list(learner.perplexity({"x": ids}, length=8, verbose=False).values()))
    for name in losses[0]:
        np.testing.assert_allclose(losses[1][name], losses[0][name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(*perplexities, rtol=1e-4)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "script",
    in_full([CLASSIFIER, CHOICES_AND_RANKS, WINDOWS, LISTS, SEVERAL, THE_OTHERS], [CLASSIFIER]),
    ids=["labels", "choices and ranks", "windows", "lists", "several tasks", "others"],
)
def test_two_replicas_learn_and_answer_as_one(smallest, tmp_path, script):
    code = textwrap.dedent(PREAMBLE + script)
    command = [sys.executable, "-c", code, str(smallest), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
