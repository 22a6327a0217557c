"""Recipes and their runs: fine-tuning, pretraining, distillation, sweeps, experiments."""

from bertfam_tf.lazy import lazy

_HOME = {
    "DistillRecipe": "schema",
    "MultiTaskRecipe": "schema",
    "PretrainRecipe": "schema",
    "Recipe": "schema",
    "answer_file": "answers",
    "as_json": "answers",
    "distill": "distillation",
    "evaluate": "fine_tuning",
    "load_recipe": "reading",
    "load_run": "reading",
    "pretrain": "pretraining",
    "read_split": "splits",
    "run": "fine_tuning",
    "source_of": "answers",
    "train": "multi_task",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)
