"""Checks that a tokenizer gives the same results in tf.data, SavedModels and TFLite."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

# Operations that call Python, and mutable tables.
FORBIDDEN = {"PyFunc", "EagerPyFunc", "PyFuncStateless", "MutableHashTableV2"}


class Endpoint(tf.Module):
    """Converts raw text to dense ids and offsets."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def serve(self, text):
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(text)
        return {
            "ids": ids.to_tensor(-1),
            "starts": starts.to_tensor(-1),
            "ends": ends.to_tensor(-1),
            "plain": self.tokenizer.tokenize(text).to_tensor(-1),
        }


def assert_the_same_in_a_dataset(tokenizer: Any, rows: Sequence[Any]) -> None:
    """Compares single texts and batches, with and without offsets."""
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    one_by_one = [row.numpy().tolist() for row in dataset.map(tokenizer.tokenize)]
    batches = dataset.batch(7).map(tokenizer.tokenize_with_offsets)
    batched = [row for batch in batches for row in batch[0].to_list()]
    assert one_by_one == batched == tokenizer.tokenize(rows).to_list()


def assert_the_same_in_a_saved_model(
    tokenizer: Any,
    batches: Sequence[Sequence[Any]],
    path: Path,
    forbidden: frozenset[str] = frozenset(),
) -> None:
    """Compares a loaded SavedModel, and one in a session without objects, as in TF Serving."""
    endpoint = Endpoint(tokenizer)
    texts = [tf.constant(batch, tf.string) for batch in batches]
    expected = [endpoint.serve(batch) for batch in texts]
    tf.saved_model.save(endpoint, str(path), signatures=endpoint.serve)
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        signature = meta.signature_def["serving_default"]
        fetches = {name: info.name for name, info in signature.outputs.items()}
        text = signature.inputs["text"].name
        served = [session.run(fetches, {text: batch.numpy()}) for batch in texts]
    inner = [node for made in meta.graph_def.library.function for node in made.node_def]
    used = {node.op for node in [*meta.graph_def.node, *inner]}
    assert not used & (FORBIDDEN | forbidden)
    for batch, wanted, other in zip(texts, expected, served, strict=True):
        found = loaded(text=batch)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)
            np.testing.assert_array_equal(other[name], value)


def assert_the_same_in_tflite(tokenizer: Any, batches: Sequence[Sequence[Any]]) -> None:
    """Compares a TFLite model with only built-in and tensorflow-text kernels."""
    from tensorflow.lite.python import interpreter

    endpoint = Endpoint(tokenizer)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [endpoint.serve.get_concrete_function()], endpoint
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.allow_custom_ops = True
    runner = interpreter.InterpreterWithCustomOps(
        model_content=converter.convert(),
        custom_op_registerers=tf_text.tflite_registrar.SELECT_TFTEXT_OPS,
    ).get_signature_runner()
    for batch in batches:
        expected = endpoint.serve(tf.constant(batch))
        found = runner(text=np.array(batch))
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
