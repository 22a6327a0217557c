"""Training: the Keras model and its loop, optimizers, callbacks, strategies, stacking."""

from bertfam_tf.lazy import lazy

# Imported on first use, because some need TensorFlow and Keras may run on another backend.
_HOME = {
    "Learner": "learner",
    "Stage": "settings",
    "StreamLM": "stream_lm",
    "TrainConfig": "settings",
    "Trained": "stacking",
    "copied_paths": "stacking",
    "copy_moments": "stacking",
    "grow": "stacking",
    "train_in_stages": "stacking",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)
