"""Keras callbacks of a run: training checkpoints, logs, the best epoch, divergence."""
