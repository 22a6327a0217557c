"""``bertfam serve``."""

from bertfam_serve.__main__ import add_flags, run
from bertfam_tf.cli.common import Commands, add_command


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "serve exported models over REST and gRPC on this machine"
    add_flags(add_command(commands, "serve", run, text))
