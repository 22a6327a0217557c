"""Modules and arguments of version 0.1 with other names now."""

import importlib

import pytest

from bertfam_tf.metrics import retrieval_scores


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tasks.base:Task", "tasks.task:Task"),
        ("tasks.parts:Parts", "tasks.components:TaskComponents"),
        ("config:load_recipe", "recipes:load_recipe"),
        ("learner:Learner", "training.learner:Learner"),
    ],
)
def test_old_names_warn(old, new):
    def named(path):
        module, name = path.split(":")
        return getattr(importlib.import_module(f"bertfam_tf.{module}"), name)

    message = rf"bertfam_tf\.{old} is now bertfam_tf\.{new};".replace(":", r"\.")
    with pytest.warns(FutureWarning, match=message):
        moved = named(old)
    assert moved is named(new)


def test_old_arguments_warn():
    message = "retrieval_scores: found is now retrieved;"
    with pytest.warns(FutureWarning, match=message) as caught:
        scores = retrieval_scores(found=[[0, 1]], relevant=[[0]])
    assert scores == retrieval_scores([[0, 1]], [[0]])
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="multiple values"):
        retrieval_scores([[0, 1]], [[0]], found=[[0, 1]])
