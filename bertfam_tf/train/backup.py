"""States of a run on disk, from which it goes on after it was killed."""

import os
import shutil
from pathlib import Path

import keras
import numpy as np
from safetensors.numpy import load_file, save_file

_STATE = "state.safetensors"


class Backup(keras.callbacks.Callback):
    """Writes weights, optimizer and random states every ``every`` steps and at each epoch's end.

    Keras' own ``BackupAndRestore`` starts an interrupted epoch anew and forgets the states of
    dropout; here the optimizer's step count says how many batches the stream has to pass over, so
    that a run that was killed ends as one that was not. A state appears whole or not at all.

    Args:
        directory: where states go; it holds one once training has begun.
        every: steps between states.
    """

    def __init__(self, directory: Path, every: int):
        super().__init__()
        self.directory = directory
        self.every = every

    @property
    def exists(self) -> bool:
        """Whether there is a state."""
        return (self.directory / _STATE).is_file()

    def restore(self, model: keras.Model) -> int:
        """Loads the last state into a compiled model; the number of steps it has taken."""
        if not self.exists:
            return 0
        stored = load_file(self.directory / _STATE)
        for name, variable in _variables(model).items():
            variable.assign(stored[name])
        return int(model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) % self.every == 0:
            self._write()

    def on_epoch_end(self, epoch, logs=None):
        self._write()

    def _write(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f"{os.getpid()}.tmp"
        # The step count comes as a NumPy scalar, which safetensors does not take.
        state = {name: np.asarray(v.numpy()) for name, v in _variables(self.model).items()}
        save_file(state, temporary)
        temporary.rename(self.directory / _STATE)

    def clear(self) -> None:
        """Removes the states of a run that is done."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """All that a training step reads, under names that are the same in each process."""
    model.optimizer.build(model.trainable_variables)
    # Keras numbers the generators of a process, so their order stands for their names.
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    return {
        **{v.path: v for v in model.weights},
        **{f"optimizer/{i}": v for i, v in enumerate(model.optimizer.variables)},
        **{f"seed/{i}": v for i, v in enumerate(seeds)},
    }
