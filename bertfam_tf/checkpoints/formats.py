"""The registered checkpoint formats."""

from pathlib import Path

from bertfam_tf.checkpoints import allennlp, huggingface, keras_hub, own, tf_checkpoint
from bertfam_tf.checkpoints.source import Format, Source
from bertfam_tf.sources import CheckpointError

# In the order in which they are tried.
FORMATS = [
    own.FORMAT,
    allennlp.FORMAT,
    tf_checkpoint.FORMAT,
    keras_hub.FORMAT,
    huggingface.FORMAT,
]
# A version, and the directory of versions.
_EXPORTS = ("saved_model.pb", "*/saved_model.pb")


def register(format: Format) -> Format:
    """Adds a format, which is tried before those registered earlier."""
    FORMATS.insert(0, format)
    return format


def matches(directory: Path) -> bool:
    """Returns whether a directory has a checkpoint of a registered format."""
    return any(format.matches(directory) for format in FORMATS)


def read(directory: Path, family: str | None = None) -> Source:
    """Opens the checkpoint in ``directory``, in any registered format.

    Args:
        directory: the checkpoint's directory.
        family: the family to read it as; None for the one that it names.

    Raises:
        CheckpointError: if the directory has no checkpoint of any format, or the format's reader
            raises it.
    """
    for format in FORMATS:
        if format.matches(directory):
            return format.read(directory, family)
    huggingface.check_no_adapter(directory)
    looked_for = f"Looked for {'; '.join(format.files for format in reversed(FORMATS))}."
    if any(next(directory.glob(name), None) for name in _EXPORTS):
        looked_for = "It has a SavedModel, for bertfam serve: name the model that was exported."
    raise CheckpointError(f"No {huggingface.CONFIG} in {directory}. {looked_for}")
