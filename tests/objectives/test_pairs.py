"""Labels of pairs: examples without one count neither in the loss nor in the accuracy."""

import numpy as np

from bertfam_tf.objectives import PairLabels
from bertfam_tf.objectives.objective import Batch


def test_loss_and_accuracy_by_hand():
    logits = np.array([[2.0, 0.0], [1.0, 3.0], [0.0, 5.0], [4.0, 0.0]], "float32")
    labels = np.array([0, 0, -1, -1], "int32")
    losses = np.log(np.exp(logits).sum(1)) - logits[:, 0]
    objective = PairLabels(lambda outputs: outputs, weight=0.5)
    found = objective.loss(logits, objective.heads, Batch({}, {"pair": labels}))
    assert objective.weights == {"pair": 0.5}
    np.testing.assert_allclose(found.pop("pair"), (losses[:2].sum(), 2), rtol=1e-6)
    np.testing.assert_allclose(found.pop("pair_accuracy"), (1, 2))
    assert not found
