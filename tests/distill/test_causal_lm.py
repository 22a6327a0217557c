"""A causal language model is distilled on lines of text: next tokens, layers and attention."""

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.distill import (
    AttentionProbabilities,
    AttentionScores,
    Distiller,
    Embeddings,
    HiddenCosine,
    HiddenStates,
    LogitsError,
    Relations,
    SoftTargets,
    student_of,
)
from tests.distill.test_distiller import still
from tests.tasks.test_causal_lm import _model

TEXTS = [
    "The old man went down to the harbour.",
    "It rained.",
    "",
    "She sold the ninth house on it.",
]
TERMS = [
    SoftTargets(temperature=2.0),
    LogitsError(),
    HiddenStates(),
    HiddenStates(name="hidden_states_tinybert", scaling="tinybert"),
    Embeddings(),
    HiddenCosine(),
    AttentionScores(),
    AttentionScores(name="attention_scores_tinybert", scaling="tinybert"),
    AttentionProbabilities(),
]


@pytest.fixture(scope="module")
def teacher():
    return _model(scale=0.2)


@pytest.mark.extended
def test_a_teacher_as_its_own_student(teacher, tmp_path):
    distiller = still(Distiller(teacher, teacher, TERMS, labels=1.0))
    for cache in (None, tmp_path / "cache"):
        found = distiller.fit(TEXTS, batch_size=4, verbose=0, cache=cache).history
        own = teacher.evaluate(TEXTS, return_dict=True, verbose=0)["loss"]
        assert found.pop("labels") == [pytest.approx(own, rel=1e-5)]
        for term in TERMS:
            assert abs(found[term.label][0]) < 1e-6, (term.label, found)


@pytest.mark.full
def test_a_smaller_student_learns(teacher):
    student = student_of(teacher, 1, layers=None, hidden_size=8, intermediate_size=16)
    terms = [SoftTargets(), HiddenStates(), AttentionScores(layers="last")]
    distiller = Distiller(student, teacher, terms)
    distiller.compile(keras.optimizers.Adam(0.01))
    losses = distiller.fit(TEXTS, batch_size=4, epochs=8, verbose=0).history
    for term in terms:
        assert losses[term.label][-1] < losses[term.label][0], term
    assert np.isfinite(student.perplexity(TEXTS))


def test_what_does_not_match(teacher):
    with pytest.raises(ValueError, match=r"gpt2 backbone has no (keys|queries|values)"):
        Distiller(teacher, teacher, [Relations()])
    longer = student_of(teacher, max_positions=64)
    longer = bf.CausalLM(longer.backbone, longer.tokenizer, max_length=64)
    with pytest.raises(ValueError, match="reads up to 64 tokens, the teacher has 48 positions"):
        Distiller(longer, teacher, [SoftTargets()])
