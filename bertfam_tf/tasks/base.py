"""The former home of ``bertfam_tf.tasks.task``."""

from bertfam_tf.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {},
    [],
    moved={
        "Task": "bertfam_tf.tasks.task",
        "task_class": "bertfam_tf.tasks.task",
        "trainable_tasks": "bertfam_tf.tasks.task",
    },
)
