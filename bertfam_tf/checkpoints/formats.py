"""Which format a directory holds, by its files."""

from pathlib import Path

from bertfam_tf.checkpoints import huggingface, keras_hub, pytorch, safetensors, tf_checkpoint
from bertfam_tf.checkpoints.foreign import Source
from bertfam_tf.checkpoints.tensors import Tensors
from bertfam_tf.sources import CheckpointError

_KNOWN = f"""\
{huggingface.CONFIG} with {safetensors.SINGLE}, {safetensors.INDEX}, {pytorch.SINGLE} or \
{pytorch.INDEX} (Hugging Face); {huggingface.CONFIG} with {keras_hub.WEIGHTS} (KerasHub); \
{", ".join(tf_checkpoint.CONFIGS)} with *.index and *.data-* (TensorFlow checkpoints)"""


def read(directory: Path) -> Source:
    """The checkpoint in ``directory``, whichever format it has.

    Raises:
        CheckpointError: for a directory of none; the text lists what was looked for. And as the
            format's reader raises it.
    """
    has_config = (directory / huggingface.CONFIG).is_file()
    if tf_checkpoint.is_in(directory):
        # Some archives hold a config of each kind; then the weights decide.
        weights = safetensors.is_in(directory) or pytorch.is_in(directory)
        if not has_config or (tf_checkpoint.has_weights(directory) and not weights):
            return tf_checkpoint.read(directory)
    if not has_config:
        raise CheckpointError(f"No {huggingface.CONFIG} in {directory}. Looked for {_KNOWN}.")
    values = huggingface.read_config(directory)
    if keras_hub.is_in(values):
        return keras_hub.read(directory, values)
    return Source(values, _hugging_face(directory))


def _hugging_face(directory: Path) -> Tensors:
    # safetensors first: it is mapped and runs no code.
    for reader in (safetensors, pytorch):
        if reader.is_in(directory):
            return reader.read(directory)
    raise CheckpointError(
        f"No weights in {directory}: expected {safetensors.SINGLE}, {safetensors.INDEX}, "
        f"{pytorch.SINGLE} or {pytorch.INDEX}."
    )
