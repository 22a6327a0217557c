"""Counts the operations that an export executes."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def executed(
    export: Path, inputs: Mapping[str, Any], signature: str = "serving_default"
) -> collections.Counter[str]:
    """Runs a signature in a session of one thread, as TensorFlow Serving does.

    Args:
        export: the directory of a version.
        inputs: arrays by the name of the input.
        signature: its name.

    Returns:
        The number of executed operations by type; operations in functions count too, and those of
        branches that are not taken do not.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizers' kernels)
    from tensorflow.core.protobuf import config_pb2

    one = config_pb2.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Graph().as_default(), tf.compat.v1.Session(config=one) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(export))
        called = loaded.signature_def[signature]
        fetched = [output.name for output in called.outputs.values()]
        fed = {called.inputs[name].name: value for name, value in inputs.items()}
        session.run(fetched, fed)
        found = config_pb2.RunMetadata()
        options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.SOFTWARE_TRACE)
        session.run(fetched, fed, options=options, run_metadata=found)
    # ``name = Operation(inputs)``
    return collections.Counter(
        node.timeline_label.rpartition(" = ")[2].partition("(")[0]
        for device in found.step_stats.dev_stats
        for node in device.node_stats
    )
