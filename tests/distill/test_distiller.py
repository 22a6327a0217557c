"""A student imitates a teacher: any task, any family, in Keras' loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import layers, registry
from bertfam_tf.distill import (
    AttentionProbabilities,
    AttentionScores,
    Distiller,
    Embeddings,
    FirstTokens,
    HiddenCosine,
    HiddenStates,
    LogitsError,
    Relations,
    SoftTargets,
    student_of,
    warm_start,
)
from bertfam_tf.distill.term import Outputs
from bertfam_tf.models import Backbone, unpadding
from bertfam_tf.text import CharacterTokenizer
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.distill.conftest import PIECES
from tests.selection import in_full, only_in

TEXTS = ["a fine film", "dull", "one fine film a dull film", "fine ones"] * 2
LABELS = ["yes", "no"] * 4
TAGS = ["O O B", "O", "O O B O O B", "O B"] * 2
QUESTIONS = {"question": ["one", "a film"] * 2, "context": ["a fine film", "dull one"] * 2}
ANSWERS = {"answer": ["film", "one"] * 2, "answer_start": [7, 5] * 2}
EVERY_TERM = [
    SoftTargets(temperature=2.0),
    LogitsError(),
    HiddenStates(projection="shared"),
    Embeddings(projection="shared"),
    HiddenCosine(),
    FirstTokens(layers="uniform"),
    AttentionScores(),
    AttentionProbabilities(),
    Relations(heads=8),
]


def _backbone(num_layers, family="bert", **fields):
    fields = {"dropout": 0.0, "attention_dropout": 0.0, "hidden_size": 16, "num_heads": 2} | fields
    fields |= {"intermediate_size": 32, "vocab_size": len(PIECES), "num_layers": num_layers}
    made = bf.build(family, "tiny" if family == "bert" else "base", **fields)
    _fill(made.weights, num_layers)
    return made


def _fill(weights, seed):
    """Weights far from their initial values, the same in each call."""
    random = np.random.default_rng(seed)
    for weight in weights:
        weight.assign(random.normal(weight.name == "gamma", 0.3, weight.shape))


OPTIONS = {
    "TextClassifier": [["no", "yes"]],
    "MultiLabelClassifier": [["no", "yes"]],
    "TokenTagger": [["O", "B"]],
}


def task_of(tokenizer, num_layers, task="TextClassifier", **fields):
    made = getattr(bf, task)(_backbone(num_layers, **fields), tokenizer, *OPTIONS.get(task, []))
    _fill(made.head.weights, num_layers)
    return made


def still(distiller):
    """Compiled so that nothing is learned."""
    distiller.compile(keras.optimizers.SGD(0.0))
    return distiller


def _values(model):
    return {weight.path: np.array(weight) for weight in model.weights}


@pytest.mark.extended
def test_only_the_student_and_the_projections_are_trained(tokenizer):
    student, teacher = task_of(tokenizer, 1), task_of(tokenizer, 2)
    distiller = Distiller(student, teacher, EVERY_TERM, labels=1.0)
    distiller.compile(keras.optimizers.SGD(0.1), metrics=["accuracy"])
    before = _values(teacher), _values(student), _values(distiller)
    history = distiller.fit(TEXTS, LABELS, batch_size=8, epochs=2, verbose=0).history
    assert {"labels", "soft_targets", "relations", "accuracy"} < set(history)
    for path, value in _values(teacher).items():
        np.testing.assert_array_equal(value, before[0][path])
    changed = {path for path, v in _values(student).items() if np.any(v != before[1][path])}
    assert changed == set(before[1])
    ours = _values(distiller)
    added = set(ours) - set(before[1])
    assert added == {"shared_projection/kernel", "shared_projection/bias"}
    assert all(np.any(ours[path] != before[2][path]) for path in added)


@pytest.mark.extended
def test_one_batch_of_raw_text(tokenizer):
    student, teacher = task_of(tokenizer, 1), task_of(tokenizer, 2)
    distiller = still(Distiller(student, teacher, [SoftTargets(), HiddenStates()], labels=1.0))
    expected = distiller.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    for method in (distiller.test_on_batch, distiller.train_on_batch):
        distiller.reset_metrics()
        assert method(TEXTS, LABELS, return_dict=True) == pytest.approx(expected, rel=1e-5)


@only_in("full", "False")
@pytest.mark.parametrize("unpadded", [False, True])
def test_losses_are_those_of_the_networks_outputs(tokenizer, unpadded):
    """With padding in the batch, in a graph that computes it or leaves it out."""
    student, teacher = task_of(tokenizer, 1), task_of(tokenizer, 2)
    terms = EVERY_TERM if unpadded else [SoftTargets(), HiddenStates(), AttentionScores()]
    distiller = still(Distiller(student, teacher, terms, labels=1.0))
    [(inputs, targets)] = distiller.text_batches(TEXTS, LABELS, batch_size=8)
    mask = tf.cast(inputs["padding_mask"], tf.bool)
    assert not np.all(mask)
    if not unpadded:
        distiller.jit_compile = True  # so that shapes do not depend on values
    with unpadding(not unpadded):
        given = distiller(inputs)
        loss = distiller.compute_loss(inputs, targets, given)
    found = distiller.get_metrics_result()
    names = ["hidden_states", "attention_scores", "queries", "keys", "values"]
    sides = [
        Outputs(task.backbone(inputs, outputs=names), task(inputs), np.ones(8, "float32"))
        for task in (student, teacher)
    ]
    objective = distiller._distillation.value
    for term in distiller.terms:
        total, count = term.loss(*sides, mask, objective.projections)
        assert float(found[term.label]) == pytest.approx(float(total / count), rel=1e-4), term
    own = student.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)["loss"]
    assert float(found["labels"]) == pytest.approx(own, rel=1e-5)
    assert float(loss) == pytest.approx(float(found["loss"]), rel=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("how", in_full(["accumulated", "recomputed", "both"], ["both"]))
def test_steps_in_parts_and_with_recomputed_blocks(how, tokenizer):
    """The same losses and weights as steps of whole batches, in which all activations are kept."""
    losses, weights = [], []
    for plain in (True, False):
        distiller = Distiller(task_of(tokenizer, 1), task_of(tokenizer, 2), EVERY_TERM, labels=1.0)
        _fill(distiller._distillation.value.projections.layers["shared"].weights, 0)
        parts = 1 if plain or how == "recomputed" else 3
        distiller.compile(keras.optimizers.SGD(0.05), accumulation_steps=parts)
        distiller.recompute_blocks = not plain and how != "accumulated"
        options = dict(batch_size=8, epochs=2, shuffle=False, verbose=0)
        losses.append(distiller.fit(TEXTS, LABELS, **options).history)
        weights.append(_values(distiller))
    for name, values in losses[0].items():
        np.testing.assert_allclose(losses[1][name], values, rtol=1e-4, err_msg=name)
    for path, value in weights[0].items():
        np.testing.assert_allclose(weights[1][path], value, atol=1e-5, err_msg=path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "data"),
    [
        ("TextClassifier", (TEXTS, LABELS)),
        ("TextClassifier", (list(zip(TEXTS, TEXTS[::-1], strict=True)), LABELS)),
        ("MultiLabelClassifier", (TEXTS, [["yes"], [], ["no"], ["yes", "no"]] * 2)),
        ("TextRegressor", (TEXTS, list(range(8)))),
        ("TokenTagger", (TEXTS, TAGS)),
        ("SpanQA", (QUESTIONS, ANSWERS)),
        ("MaskedLM", (TEXTS,)),
    ],
)
def test_tasks(task, data, tokenizer):
    student, teacher = task_of(tokenizer, 1, task), task_of(tokenizer, 2, task)
    if task == "TextClassifier" and isinstance(data[0][0], tuple):
        data = (tuple(map(list, zip(*data[0], strict=True))), data[1])
    logits = LogitsError() if task == "TextRegressor" else SoftTargets()
    terms = [logits, HiddenStates(), Relations()]
    distiller = Distiller(student, teacher, terms, labels=1.0)
    distiller.compile(keras.optimizers.Adam(0.01))
    losses = distiller.fit(*data, batch_size=8, epochs=8, verbose=0).history
    assert losses["loss"][-1] < losses["loss"][0]
    # The teacher is imitated perfectly by itself.
    same = still(Distiller(teacher, teacher, terms))
    found = same.fit(*data, batch_size=8, verbose=0).history
    assert all(abs(values[0]) < 1e-5 for values in found.values())


@pytest.mark.full
@pytest.mark.parametrize(
    "family", [name for name in bf.families() if "sequence" in registry.get(name).heads]
)
def test_families_of_students(family, tokenizer):
    """What a family has can be imitated, whichever it is; from logits all learn."""
    teacher = task_of(tokenizer, 2)
    # Those of the size are beyond this vocabulary.
    more = {"cutoffs": ()} if hasattr(bf.models.config_of(family, "tiny"), "cutoffs") else {}
    characters = registry.get(family).tokenizer.kind == "characters"
    own = CharacterTokenizer() if characters else tokenizer
    made = bf.build(family, "tiny", num_layers=1, vocab_size=own.vocab_size, **more)
    student = bf.TextClassifier(
        made,
        own,
        ["no", "yes"],
        max_length=32,
        **({"language_id": 0} if "language_ids" in made.input else {}),
    )
    terms = [SoftTargets()] if characters else [SoftTargets(), HiddenStates(layers="last")]
    if registry.get(family).is_causal:
        with pytest.raises(ValueError, match="student has causal attention"):
            Distiller(student, teacher, [AttentionScores()])
    elif "attention_scores" in made.output:
        terms.append(AttentionProbabilities())
    distiller = Distiller(student, teacher, terms)
    distiller.compile(keras.optimizers.Adam(0.01))
    losses = distiller.fit(TEXTS, batch_size=8, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.full
def test_several_teachers_are_averaged(tokenizer):
    student, *teachers = (task_of(tokenizer, n) for n in (1, 2, 3))
    distiller = still(Distiller(student, teachers, [LogitsError()]))
    found = distiller.fit(TEXTS, verbose=0).history["logits_error"][0]
    [inputs] = [x for x, *_ in student.text_batches(TEXTS, labelled=False)]
    ours, *theirs = (np.array(task(inputs)) for task in (student, *teachers))
    assert found == pytest.approx(np.mean((ours - sum(theirs) / 2) ** 2), rel=1e-4)
    with pytest.raises(ValueError, match="averaged by their logits; hidden_states are not"):
        Distiller(student, teachers, [HiddenStates()])


@pytest.mark.full
def test_another_tokenizer(tokenizer, tmp_path):
    """Each network reads the text through its own tokenizer."""
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join([*PIECES[:5], *reversed(PIECES[5:])]) + "\n")
    student = task_of(WordPieceTokenizer(other), 1)
    teacher = task_of(tokenizer, 2)
    distiller = still(Distiller(student, teacher, [LogitsError()]))
    found = distiller.fit(TEXTS, verbose=0).history["logits_error"][0]
    each = [
        np.concatenate([task(x) for x, *_ in task.text_batches(TEXTS, labelled=False)])
        for task in (student, teacher)
    ]
    assert found == pytest.approx(np.mean((each[0] - each[1]) ** 2), rel=1e-4)
    with pytest.raises(ValueError, match="Terms on hidden_states compare tokens"):
        Distiller(student, teacher, [HiddenStates()])
    taggers = (
        task_of(WordPieceTokenizer(other), 1, "TokenTagger"),
        task_of(tokenizer, 2, "TokenTagger"),
    )
    with pytest.raises(ValueError, match="A TokenTagger splits texts into windows of tokens"):
        Distiller(*taggers, [SoftTargets()])


@pytest.mark.full
def test_backbones_are_distilled_on_their_inputs(tokenizer):
    student, teacher = _backbone(1), _backbone(2)
    distiller = Distiller(student, teacher, [HiddenStates(), Relations()])
    distiller.compile(keras.optimizers.Adam(0.01))
    inputs = {"token_ids": np.ones((8, 4), "int32"), "padding_mask": np.ones((8, 4), "int32")}
    inputs["segment_ids"] = np.zeros((8, 4), "int32")
    losses = distiller.fit(inputs, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("student", "terms", "labels", "error"),
    [
        ({"hidden_size": 24}, [HiddenCosine()], 0, "layer 1 of the student has width 24, layer 2"),
        ({"num_heads": 4}, [AttentionScores()], 0, "layer 1 of the student has 4 heads, layer 2"),
        ({"num_heads": 4}, [Relations()], 0, "choose a number of relation heads"),
        ({}, [Relations(heads=5)], 0, "the width 16 is not a multiple of 5 relation heads"),
        ({}, [AttentionScores(layers={0: 1})], 0, "the embeddings, layer 0, have no attention"),
        ({}, [Relations(layers={1: 0})], 0, "the embeddings, layer 0, have no attention"),
        ({}, [], 0, "needs at least one term"),
        ({}, [SoftTargets(), SoftTargets()], 0, "Two terms are named 'soft_targets'"),
    ],
)
def test_a_student_that_does_not_match(student, terms, labels, error, tokenizer):
    with pytest.raises(ValueError, match=error):
        Distiller(task_of(tokenizer, 1, **student), task_of(tokenizer, 2), terms, labels)


@pytest.mark.parametrize("family", in_full(bf.families(), ("bert", "gpt2", "xlnet", "elmo")))
def test_first_tokens_are_those_that_classifiers_read(family):
    """The oracle is the output: it depends on the first token's alone, or it does not."""
    record = registry.get(family)
    characters = record.tokenizer.kind == "characters"
    vocabulary = 262 if characters else 64
    more = {"cutoffs": ()} if hasattr(bf.models.config_of(family, "tiny"), "cutoffs") else {}
    backbone = bf.build(family, "tiny", num_layers=1, vocab_size=vocabulary, **more)
    reads = record.heads["sequence"].reads if "sequence" in record.heads else "first_token"
    output, first = backbone.output[reads], backbone.output["first_token"]
    is_first = output is first or _pooled_by(output, layers.FirstTokenPooler)
    assert (record.summary == "first_token") == is_first
    if is_first:
        Distiller(backbone, backbone, [FirstTokens(layers="uniform")])
        return
    instead = {"last_token": "the last real token does", "pooled_output": "no single token does"}
    error = f"the student's {family} backbone does not .*; {instead[record.summary]}"
    with pytest.raises(ValueError, match=error):
        Distiller(backbone, backbone, [FirstTokens(layers="uniform")])


def test_examples_of_several_rows_are_refused(tokenizer):
    backbone = bf.build("bert", "tiny", num_layers=1, vocab_size=tokenizer.vocab_size)
    task = bf.MultipleChoice(backbone, tokenizer)
    with pytest.raises(ValueError, match=r"MultipleChoice cannot .* Distil backbones"):
        Distiller(task, task, [SoftTargets()])


def _pooled_by(output, kind):
    return isinstance(output._keras_history.operation, kind)


def test_other_labels_and_tasks(tokenizer):
    teacher = task_of(tokenizer, 2)
    other = bf.TextClassifier(_backbone(1), tokenizer, ["good", "bad"])
    with pytest.raises(ValueError, match="has the labels good, bad, the teacher no, yes"):
        Distiller(other, teacher, [SoftTargets()])
    with pytest.raises(ValueError, match="the student is a TokenTagger, the teacher TextClassif"):
        Distiller(task_of(tokenizer, 1, "TokenTagger"), teacher, [SoftTargets()])
    with pytest.raises(ValueError, match="soft_targets needs several classes"):
        Distiller(*(task_of(tokenizer, n, "TextRegressor") for n in (1, 2)), [SoftTargets()])
    with pytest.raises(ValueError, match="labels must be 0 for a Backbone"):
        Distiller(_backbone(1), _backbone(2), [HiddenStates()], labels=1.0)
    with pytest.raises(ValueError, match="No labels were given"):
        Distiller(task_of(tokenizer, 1), teacher, [SoftTargets()], labels=1.0).fit(TEXTS)


def test_the_same_layers_of_a_student_begin_as_the_teachers(tokenizer):
    teacher = task_of(tokenizer, 4)
    student = student_of(teacher, 2, layers="every_other")
    theirs = _values(teacher)
    for path, value in _values(student).items():
        source = path.replace("layer_1/", "layer_3/")
        np.testing.assert_array_equal(value, theirs[source], err_msg=path)


def test_a_first_block_without_a_norm_is_a_copy_of_one_with_a_norm():
    sizes = {"hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "vocab_size": 20}
    teacher = Backbone("modernbert", {**sizes, "num_layers": 4})
    student = student_of(teacher, 2, layers="top")
    theirs = _values(teacher)
    for path, value in _values(student).items():
        source = path.replace("layer_1/", "layer_3/").replace("layer_0/", "layer_2/")
        np.testing.assert_array_equal(value, theirs[source], err_msg=path)


def test_narrower_embeddings_are_projected(tokenizer):
    teacher = _backbone(2)
    student = student_of(teacher, 1, hidden_size=8)
    tables = ("token_embedding", "segment_embedding", "position_embedding")
    ours, theirs = ([np.array(x.parts[n].embeddings) for n in tables] for x in (student, teacher))
    # One orthogonal projection for all: products of the projected part are those of the rest.
    directions = np.linalg.lstsq(theirs[2], ours[2], rcond=None)[0]
    np.testing.assert_allclose(directions.T @ directions, np.eye(8), atol=1e-4)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b @ directions, atol=1e-4)
    with pytest.raises(ValueError, match="No weight of the bert teacher"):
        warm_start(_backbone(1, hidden_size=32), teacher)


def test_a_student_of_another_family(tokenizer):
    teacher = task_of(tokenizer, 4)
    student = student_of(teacher, 2, family="distilbert")
    assert student.backbone.family == "distilbert"
    assert student.backbone.config.hidden_size == 16
    np.testing.assert_array_equal(
        student.backbone.parts["layer_1"].get_weights()[0],
        teacher.backbone.parts["layer_3"].get_weights()[0],
    )
