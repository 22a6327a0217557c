"""The former home of ``bertfam_tf.recipes`` and ``bertfam_tf.training``."""

from bertfam_tf.lazy import lazy

_MOVED = {
    "bertfam_tf.recipes": "answer_file as_json evaluate pretrain read_split run source_of",
    "bertfam_tf.training": "Stage StreamLM Trained copied_paths copy_moments grow train_in_stages",
}

__getattr__, __dir__ = lazy(__name__, {}, moved=_MOVED)
