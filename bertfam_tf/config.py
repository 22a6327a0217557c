"""The former home of recipes."""

from bertfam_tf.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {},
    [],
    moved={
        "DistillRecipe": "bertfam_tf.recipes",
        "MultiTaskRecipe": "bertfam_tf.recipes",
        "PretrainRecipe": "bertfam_tf.recipes",
        "Recipe": "bertfam_tf.recipes",
        "Stage": "bertfam_tf.training",
        "TrainConfig": "bertfam_tf.training",
        "load_recipe": "bertfam_tf.recipes",
        "load_run": "bertfam_tf.recipes",
    },
)
