"""``bertfam convert``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "convert",
        run,
        "convert a saved task or any supported checkpoint to Hugging Face's format",
    )
    parser.add_argument(
        "source",
        help="a saved task, the output directory of a recipe, or a checkpoint: a directory, "
        "package:NAME, or a hub id",
    )
    parser.add_argument("target", help="the directory to create; it is never overwritten")
    parser.add_argument("--family", help="its family, if the checkpoint does not name it")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf import tasks
    from bertfam_tf.checkpoints import convert
    from bertfam_tf.recipes.directory import model_directory

    saved = model_directory(options.source)
    if tasks.is_saved(saved):
        if options.family is not None:
            raise ValueError(f"--family is for checkpoints; {saved} is a saved task.")
        tasks.load(saved).save_pretrained(options.target)
        print(options.target)
        return
    print(convert(saved, options.target, family=options.family))
