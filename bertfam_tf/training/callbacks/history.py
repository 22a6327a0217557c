"""Logs each epoch to a CSV file."""

import csv
import io
import os
from pathlib import Path

import keras

from bertfam_tf import parsing
from bertfam_tf.files import write
from bertfam_tf.names import truncated


class History(keras.callbacks.Callback):
    """Writes a line for each epoch.

    Keras' ``CSVLogger`` appends; here an epoch that is repeated after an interruption replaces its
    earlier line, and the file is written atomically.

    Args:
        file: the CSV file.
    """

    def __init__(self, file: Path):
        super().__init__()
        self.file = file

    @property
    def rows(self) -> list[dict[str, str]]:
        """The epochs so far: numbers as text by column, empty if an epoch has no value.

        Raises:
            ValueError: if the file is damaged.
        """
        if not os.path.lexists(self.file):
            return []
        reader = csv.DictReader(io.StringIO(parsing.read_text(self.file), newline=""))
        try:
            rows = list(reader)
            for row in rows:
                int(row["epoch"])
                for value in row.values():
                    float(value or "nan")
        except (csv.Error, ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{self.file} is not the history of a run, expected numbers in all columns: "
                f"{truncated(error)}. Remove it to continue without these epochs."
            ) from error
        return rows

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        row = {"epoch": str(epoch), **{name: str(logs[name]) for name in sorted(logs)}}
        rows = [*(earlier for earlier in self.rows if int(earlier["epoch"]) < epoch), row]
        text = io.StringIO(newline="")
        # Stages of a distillation have different losses.
        columns = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(text, list(columns))
        writer.writeheader()
        writer.writerows(rows)
        write(self.file, text.getvalue())
