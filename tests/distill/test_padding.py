"""Padding of a batch has no loss: a teacher as its own student imitates it perfectly.

``fit`` trains unpadded, on texts of 3 and of 62 tokens, each of which would be padded to the
longest; cached outputs are stored without padding.
"""

import csv
import json

import pytest

import bertfam_tf as bf
from bertfam_tf import distill
from bertfam_tf.distill import (
    AttentionProbabilities,
    AttentionScores,
    Distiller,
    FirstTokens,
    Relations,
)
from bertfam_tf.distill.term import snake_case
from bertfam_tf.recipes import distill as run_recipe
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import DistillRecipe
from tests.distill.test_distiller import _fill, still, task_of
from tests.selection import in_full

LONG = " ".join(["a fine dull film one"] * 12)
TEXTS = ["fine", LONG]
ARGUMENTS = {FirstTokens: {"layers": "uniform"}, Relations: {"heads": 4}}
# The terms that a BiLSTM does not have, with the error.
REFUSED = {
    AttentionScores: "bilstm backbone has no attention_scores",
    AttentionProbabilities: "bilstm backbone has no attention_scores",
    Relations: "bilstm backbone has no (values|queries|keys)",
    FirstTokens: "bilstm backbone does not stand for the text",
}
TERMS = [
    term(name=f"{snake_case(term.__name__)}_{scaling}", **ARGUMENTS.get(term, {}), **given)
    for term in distill.TERMS.values()
    for scaling in term.scalings
    for given in [{} if len(term.scalings) == 1 else {"scaling": scaling}]
]


def _perfect(found, terms):
    assert set(found) == {*(term.label for term in terms), "loss"}
    for name, (value,) in found.items():
        limit = 1e-6 * (len(terms) if name == "loss" else 1)
        assert abs(value) < limit, (name, value)


@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(["bert", "modernbert", "bilstm"], ["bert"]))
def test_a_teacher_as_its_own_student(family, tokenizer, tmp_path):
    """Less than 1e-6 in each term and scaling, whether outputs are cached or not."""
    terms = TERMS
    if family == "bilstm":
        made = bf.build(family, "tiny", vocab_size=tokenizer.vocab_size, dropout=0.0)
        _fill(made.weights, 1)
        model = bf.TextClassifier(made, tokenizer, ["no", "yes"])
        terms = [term for term in TERMS if type(term) not in REFUSED]
        for term in TERMS:
            if error := REFUSED.get(type(term)):
                with pytest.raises(ValueError, match=error):
                    Distiller(model, model, [term])
    else:
        model = task_of(tokenizer, 2, family=family)
    distiller = still(Distiller(model, model, terms))
    for cache in (None, tmp_path / "cache"):
        losses = distiller.fit(TEXTS, batch_size=2, verbose=0, cache=cache).history
        print(family, "cached" if cache else "each step", losses)
        _perfect(losses, terms)


def test_terms_of_every_scaling():
    assert {(type(term).__name__, getattr(term, "scaling", "mean")) for term in TERMS} == {
        *((name, "mean") for name in ("LogitsError", "HiddenCosine", "FirstTokens")),
        *((name, "mean") for name in ("AttentionProbabilities", "Relations")),
        *(("SoftTargets", scaling) for scaling in ("mean", "classes")),
        *(
            (name, scaling)
            for name in ("HiddenStates", "Embeddings", "AttentionScores")
            for scaling in ("mean", "tinybert")
        ),
    }


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
    run_recipe(load_recipe(tmp_path / "recipe.yaml", kind=DistillRecipe))
    with (tmp_path / "run" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        assert set(row) == {"epoch", "loss", *terms}
        assert all(abs(float(row[name])) < 1e-6 for name in terms), row
