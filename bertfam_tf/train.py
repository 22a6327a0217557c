"""The former home of ``bertfam_tf.recipes`` and ``bertfam_tf.training``."""

from bertfam_tf.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {},
    [],
    moved={
        "Stage": "bertfam_tf.training",
        "StreamLM": "bertfam_tf.training",
        "Trained": "bertfam_tf.training",
        "answer_file": "bertfam_tf.recipes",
        "as_json": "bertfam_tf.recipes",
        "copied_paths": "bertfam_tf.training",
        "copy_moments": "bertfam_tf.training",
        "evaluate": "bertfam_tf.recipes",
        "grow": "bertfam_tf.training",
        "pretrain": "bertfam_tf.recipes",
        "read_split": "bertfam_tf.recipes",
        "run": "bertfam_tf.recipes",
        "source_of": "bertfam_tf.recipes",
        "train_in_stages": "bertfam_tf.training",
    },
)
