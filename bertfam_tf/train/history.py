"""Logs each epoch to a CSV file."""

import csv
import io
from pathlib import Path

import keras

from bertfam_tf.files import write


class History(keras.callbacks.Callback):
    """Writes a line for each epoch.

    Keras' ``CSVLogger`` appends; here an epoch that is repeated after an interruption replaces its
    line, and the file is written atomically.

    Args:
        file: the CSV file.
    """

    def __init__(self, file: Path):
        super().__init__()
        self.file = file

    @property
    def rows(self) -> list[dict[str, str]]:
        """The epochs so far."""
        if not self.file.is_file():
            return []
        with self.file.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        row = {"epoch": str(epoch), **{name: str(logs[name]) for name in sorted(logs)}}
        rows = [*(each for each in self.rows if int(each["epoch"]) < epoch), row]
        text = io.StringIO(newline="")
        # Stages of a distillation have different losses.
        writer = csv.DictWriter(text, list(dict.fromkeys(name for each in rows for name in each)))
        writer.writeheader()
        writer.writerows(rows)
        write(self.file, text.getvalue())
