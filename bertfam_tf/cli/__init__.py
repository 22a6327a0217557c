"""The ``bertfam`` command."""

from bertfam_tf.cli.main import main

__all__ = ["main"]
