"""Each term equals a formula in NumPy, written from its paper, on tensors with padding."""

import numpy as np
import pytest
from keras import ops
from scipy.special import log_softmax, softmax

from bertfam_tf.distill import (
    AttentionProbabilities,
    AttentionScores,
    Embeddings,
    FirstTokens,
    HiddenCosine,
    HiddenStates,
    LogitsError,
    Relations,
    SoftTargets,
)
from bertfam_tf.distill.term import Outputs, Projections

BATCH, LENGTH, HEADS, SIZE = 3, 5, 4, 6
WIDTH, NARROW = HEADS * SIZE, 10
LENGTHS = [5, 2, 4]
MASK = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
PAIRS = {1: 2, 2: 4}
random = np.random.default_rng(0)


def _normal(*shape):
    return random.normal(size=shape)


def _side(layers, width):
    return {
        "hidden_states": [_normal(BATCH, LENGTH, width) for _ in range(layers + 1)],
        "attention_scores": [_normal(BATCH, HEADS, LENGTH, LENGTH) * 3 for _ in range(layers)],
        **{
            name: [_normal(BATCH, HEADS, LENGTH, SIZE) for _ in range(layers)]
            for name in ("queries", "keys", "values")
        },
    }


STUDENT, TEACHER = _side(2, WIDTH), _side(4, WIDTH)
LOGITS = _normal(BATCH, 3) * 3, _normal(BATCH, 3) * 3


def _loss(term, student=STUDENT, teacher=TEACHER, logits=LOGITS, projections=None, is_causal=False):
    counted = np.ones(logits[0].shape[:-1])
    total, count = term.loss(
        Outputs(student, ops.convert_to_tensor(logits[0]), counted, is_causal),
        Outputs(teacher, ops.convert_to_tensor(logits[1]), counted, is_causal),
        MASK,
        projections or Projections("float64"),
    )
    return float(total) / float(count)


def _agree(found, expected):
    assert found == pytest.approx(expected, abs=1e-6, rel=1e-6)
    assert abs(expected) > 1e-3


def _real():
    return [(b, i) for b, n in enumerate(LENGTHS) for i in range(n)]


# Logits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_kl_of_softened_softmaxes(temperature):
    p, q = (softmax(x / temperature, axis=-1) for x in LOGITS[::-1])
    expected = np.mean([sum(p[b] * np.log(p[b] / q[b])) for b in range(BATCH)])
    expected *= temperature**2
    _agree(_loss(SoftTargets(temperature=temperature)), expected)
    _agree(_loss(SoftTargets(temperature=temperature, scaling="classes")), expected / 3)


def test_soft_cross_entropy_of_tinybert():
    rows = -softmax(LOGITS[1], axis=-1) * log_softmax(LOGITS[0], axis=-1)
    term = SoftTargets(divergence="cross_entropy")
    _agree(_loss(term), rows.sum(-1).mean())
    term = SoftTargets(divergence="cross_entropy", scaling="classes")
    _agree(_loss(term), rows.mean())  # over all elements, as the code


def test_squared_error_of_logits():
    _agree(_loss(LogitsError()), np.mean((LOGITS[0] - LOGITS[1]) ** 2))


def test_impossible_classes_do_not_count():
    """Span QA gives padding a logit of -1e9."""
    ours, theirs = (np.concatenate([x, np.full((BATCH, 1), -1e9)], axis=1) for x in LOGITS)
    _agree(_loss(SoftTargets(), logits=(ours, theirs)), _loss(SoftTargets()))
    theirs[:, -1] = np.finfo("float16").min  # as a cache has it
    _agree(_loss(LogitsError(), logits=(ours, theirs)), _loss(LogitsError()))


# Layers ---------------------------------------------------------------------------------------


def _mse(ours, theirs, places):
    return np.mean([np.mean((ours[b, i] - theirs[b, i]) ** 2) for b, i in places])


def test_hidden_states():
    ours, theirs = STUDENT["hidden_states"], TEACHER["hidden_states"]
    each = [_mse(ours[i], theirs[j], _real()) for i, j in PAIRS.items()]
    _agree(_loss(HiddenStates(layers=PAIRS, projection="")), np.mean(each))
    # Padding adds nothing to the sum.
    padded = [np.mean((ours[i] - theirs[j]) ** 2 * MASK[..., None]) for i, j in PAIRS.items()]
    term = HiddenStates(layers=PAIRS, projection="", scaling="tinybert")
    _agree(_loss(term), sum(padded))
    _agree(_loss(Embeddings(projection="")), _mse(ours[0], theirs[0], _real()))


def test_projected_hidden_states():
    narrow = _side(2, NARROW)
    projections = Projections("float64")
    dense = projections("shared", NARROW, WIDTH)
    kernel, bias = _normal(NARROW, WIDTH), _normal(WIDTH)
    dense.set_weights([kernel, bias])
    projected = [x @ kernel + bias for x in narrow["hidden_states"]]
    theirs = TEACHER["hidden_states"]
    each = [_mse(projected[i], theirs[j], _real()) for i, j in PAIRS.items()]
    term = HiddenStates(layers=PAIRS, projection="shared")
    _agree(_loss(term, narrow, projections=projections), np.mean(each))


def test_cosine_of_the_last_layers():
    ours, theirs = STUDENT["hidden_states"][2], TEACHER["hidden_states"][4]
    each = [
        1 - ours[at] @ theirs[at] / np.linalg.norm(ours[at]) / np.linalg.norm(theirs[at])
        for at in _real()
    ]
    _agree(_loss(HiddenCosine(layers={2: 4})), np.mean(each))


def test_patient_loss_of_first_tokens():
    each = []
    for i, j in PAIRS.items():
        for b in range(BATCH):
            x, y = STUDENT["hidden_states"][i][b, 0], TEACHER["hidden_states"][j][b, 0]
            each.append(np.mean((x / np.linalg.norm(x) - y / np.linalg.norm(y)) ** 2))
    _agree(_loss(FirstTokens(layers=PAIRS)), np.mean(each))


def test_attention_scores():
    ours, theirs = STUDENT["attention_scores"], TEACHER["attention_scores"]
    each = []
    for i, j in PAIRS.items():
        difference = (ours[i - 1] - theirs[j - 1]) ** 2
        each.append(
            np.concatenate([difference[b, :, :n, :n].ravel() for b, n in enumerate(LENGTHS)])
        )
    _agree(_loss(AttentionScores(layers=PAIRS)), np.mean(np.concatenate(each)))
    code = []
    for i, j in PAIRS.items():
        difference = (ours[i - 1] - theirs[j - 1]) ** 2
        code.append(np.mean(difference * MASK[:, None, None] * MASK[:, None, :, None]))
    _agree(_loss(AttentionScores(layers=PAIRS, scaling="tinybert")), sum(code))


def _kl(p, q):
    return np.sum(p * np.log(p / q), axis=-1)


def test_attention_probabilities():
    ours, theirs = STUDENT["attention_scores"][1], TEACHER["attention_scores"][3]
    each = [
        _kl(softmax(theirs[b, :, :n, :n], -1), softmax(ours[b, :, :n, :n], -1)).ravel()
        for b, n in enumerate(LENGTHS)
    ]
    _agree(_loss(AttentionProbabilities(layers={2: 4})), np.mean(np.concatenate(each)))


def test_attention_to_earlier_tokens_only():
    ours, theirs = STUDENT["attention_scores"][1], TEACHER["attention_scores"][3]
    errors, each = [], []
    for b, n in enumerate(LENGTHS):
        for i in range(n):
            x, y = ours[b, :, i, : i + 1], theirs[b, :, i, : i + 1]
            errors.append(((x - y) ** 2).ravel())
            each.append(_kl(softmax(y, -1), softmax(x, -1)))
    term = AttentionScores(layers={2: 4})
    _agree(_loss(term, is_causal=True), np.mean(np.concatenate(errors)))
    term = AttentionProbabilities(layers={2: 4})
    _agree(_loss(term, is_causal=True), np.mean(np.concatenate(each)))


def test_layers_with_fewer_heads_weigh_as_much():
    ours, theirs = (
        dict(side, attention_scores=list(side["attention_scores"])) for side in (STUDENT, TEACHER)
    )
    for side, layer in ((ours, 1), (theirs, 3)):
        side["attention_scores"][layer] = side["attention_scores"][layer][:, :1]
    for kind in (AttentionScores, AttentionProbabilities):
        each = [_loss(kind(layers={i: j}), ours, theirs) for i, j in PAIRS.items()]
        _agree(_loss(kind(layers=PAIRS), ours, theirs), np.mean(each))


def _relation(x, b, n, heads):
    width = HEADS * SIZE // heads
    flat = x[b, :, :n].transpose(1, 0, 2).reshape(n, HEADS * SIZE)
    parts = flat.reshape(n, heads, width).transpose(1, 0, 2)
    return softmax(parts @ parts.transpose(0, 2, 1) / np.sqrt(width), -1)


@pytest.mark.parametrize("heads", [None, 2, 8, HEADS * SIZE])
def test_relations(heads):
    expected = 0
    for name in ("queries", "keys", "values"):
        ours, theirs = STUDENT[name][1], TEACHER[name][3]
        each = [
            _kl(*(_relation(x, b, n, heads or HEADS) for x in (theirs, ours))).ravel()
            for b, n in enumerate(LENGTHS)
        ]
        expected += np.mean(np.concatenate(each))
    _agree(_loss(Relations(layers={2: 4}, heads=heads)), expected)


def test_value_relations_alone():
    total = _loss(Relations(layers={2: 4}))
    each = [_loss(Relations(layers={2: 4}, of=[name])) for name in ("queries", "keys", "values")]
    _agree(sum(each), total)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: SoftTargets(temperature=0), "temperature must be above 0, got 0"),
        (lambda: SoftTargets(divergence="js"), "divergence must be kl or cross_entropy, got 'js'"),
        (
            lambda: SoftTargets(scaling="tinybert"),
            "scaling of soft_targets must be mean or classes",
        ),
        (lambda: HiddenStates(scaling="sum"), "scaling of hidden_states must be mean or tinybert"),
        (lambda: Relations(heads=0), "heads must be a number from 1 or null, got 0"),
        (lambda: Relations(of=["heads"]), "of must be some of queries, keys, values"),
    ],
)
def test_invalid_options(make, error):
    with pytest.raises(ValueError, match=error):
        make()
