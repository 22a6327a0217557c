"""Padding of a batch has no loss: a teacher as its own student imitates it perfectly.

``fit`` trains unpadded, on texts of 3 and of 62 tokens, each of which would be padded to the
longest; cached outputs are stored without padding.
"""

import csv
import json

import pytest

import bertfam_tf as bf
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
    distill,
)
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import DistillRecipe
from tests.distill.test_distiller import _fill, still, task_of
from tests.selection import in_full

LONG = " ".join(["a fine dull film one"] * 12)
TEXTS = ["fine", LONG]
TERMS = [
    SoftTargets(temperature=2.0),
    SoftTargets(name="soft_targets_classes", scaling="classes"),
    LogitsError(),
    HiddenStates(),
    HiddenStates(name="hidden_states_tinybert", scaling="tinybert"),
    Embeddings(),
    Embeddings(name="embeddings_tinybert", scaling="tinybert"),
    HiddenCosine(),
    FirstTokens(layers="uniform"),
]
ATTENTION = [
    AttentionScores(),
    AttentionScores(name="attention_scores_tinybert", scaling="tinybert"),
    AttentionProbabilities(),
    Relations(heads=4),
]


def _perfect(found, terms):
    assert set(found) == {*(term.label for term in terms), "loss"}
    for name, (value,) in found.items():
        limit = 1e-6 * (len(terms) if name == "loss" else 1)
        assert abs(value) < limit, (name, value)


@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(["bert", "modernbert", "bilstm"], ["bert"]))
def test_a_teacher_as_its_own_student(family, tokenizer, tmp_path):
    if family == "bilstm":
        made = bf.build(family, "tiny", vocab_size=tokenizer.vocab_size, dropout=0.0)
        _fill(made.weights, 1)
        model, terms = bf.TextClassifier(made, tokenizer, ["no", "yes"]), TERMS
        for term in ATTENTION:
            kind = "values|queries|keys" if isinstance(term, Relations) else "attention_scores"
            with pytest.raises(ValueError, match=f"bilstm backbone has no ({kind})"):
                Distiller(model, model, [term])
    else:
        model, terms = task_of(tokenizer, 2, family=family), TERMS + ATTENTION
    distiller = still(Distiller(model, model, terms))
    for cache in (None, tmp_path / "cache"):
        found = distiller.fit(TEXTS, batch_size=2, verbose=0, cache=cache).history
        _perfect(found, terms)


@pytest.mark.full
def test_a_teacher_as_its_own_student_in_a_recipe(tokenizer, tmp_path):
    task_of(tokenizer, 2).save(tmp_path / "teacher")
    (tmp_path / "rows.tsv").write_text(f"text\tlabel\nfine\tyes\n{LONG}\tno\n")
    terms = {
        "attention_scores": {"scaling": "tinybert"},
        "hidden_states": {"scaling": "tinybert"},
        "embeddings": {"scaling": "tinybert"},
    }
    train = {"epochs": 1, "batch_size": 2, "learning_rate": 1e-30}
    stages = [
        {"terms": terms, "teacher_outputs": outputs, "train": train}
        for outputs in ("each_step", "cached")
    ]
    recipe = {
        "output": str(tmp_path / "run"),
        "teacher": str(tmp_path / "teacher"),
        "student": {"path": str(tmp_path / "teacher")},
        "data": {"train": str(tmp_path / "rows.tsv")},
        "stages": stages,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    distill(load_recipe(tmp_path / "recipe.yaml", kind=DistillRecipe))
    with (tmp_path / "run" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        assert set(row) == {"epoch", "loss", *terms}
        assert all(abs(float(row[name])) < 1e-6 for name in terms), row
