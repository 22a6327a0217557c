"""The former home of recipes."""

from bertfam_tf.lazy import lazy

_MOVED = {
    "bertfam_tf.recipes": (
        "DistillRecipe MultiTaskRecipe PretrainRecipe Recipe load_recipe load_run"
    ),
    "bertfam_tf.training": "Stage TrainConfig",
}

__getattr__, __dir__ = lazy(__name__, {}, moved=_MOVED)
