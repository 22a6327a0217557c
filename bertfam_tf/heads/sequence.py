"""One answer for the whole input."""

import keras

from bertfam_tf.layers import normal


class SequenceHead(keras.layers.Layer):
    """Dropout and one dense layer on the pooled output (arXiv 1810.04805, section 4.1).

    Args:
        num_labels: width of the logits.
        dropout: rate in front of the dense layer.
        stddev: of the initial weights.

    Call:
        outputs: a backbone's dict with ``pooled_output`` (batch, hidden).

    Returns:
        Logits (batch, num_labels), float32.
    """

    def __init__(self, num_labels: int, dropout: float = 0.1, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(dropout, name="dropout")
        # Losses and scores are computed from logits; half precision is too coarse for them.
        self.classifier = keras.layers.Dense(
            num_labels, kernel_initializer=normal(stddev), dtype="float32", name="classifier"
        )

    def build(self, input_shape):
        self.classifier.build(input_shape["pooled_output"])

    def call(self, outputs, training=None):
        return self.classifier(self.dropout(outputs["pooled_output"], training=training))
