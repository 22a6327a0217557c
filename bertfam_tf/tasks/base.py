"""The former home of ``bertfam_tf.tasks.task``."""

from bertfam_tf.lazy import lazy

_MOVED = {
    "bertfam_tf.tasks.task": "Task task_class trainable_tasks",
}

__getattr__, __dir__ = lazy(__name__, {}, moved=_MOVED)
