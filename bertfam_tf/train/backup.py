"""States of a run on disk, from which it goes on after it was killed."""

import os
import shutil
from pathlib import Path

import keras

_STATE = "state.weights.h5"


class Backup(keras.callbacks.Callback):
    """Writes weights, optimizer and random states every ``every`` steps and at each epoch's end.

    Keras' own ``BackupAndRestore`` starts an interrupted epoch anew; here the optimizer's step
    count says how many batches the stream has to pass over, so that a run that was killed ends as
    one that was not. A state appears whole or not at all.

    Args:
        directory: where states go; it holds one once training has begun.
        every: steps between states.
    """

    def __init__(self, directory: Path, every: int):
        super().__init__()
        self.directory = directory
        self.every = every

    def restore(self, model: keras.Model) -> int:
        """Loads the last state into a compiled model; the number of steps it has taken."""
        state = self.directory / _STATE
        if not state.is_file():
            return 0
        model.optimizer.build(model.trainable_variables)
        model.load_weights(state)
        return int(model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) % self.every == 0:
            self._write()

    def on_epoch_end(self, epoch, logs=None):
        self._write()

    def _write(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f"{os.getpid()}.weights.h5"
        self.model.save_weights(temporary)
        temporary.rename(self.directory / _STATE)

    def clear(self) -> None:
        """Removes the states of a run that is done."""
        shutil.rmtree(self.directory, ignore_errors=True)
