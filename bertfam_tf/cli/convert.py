"""``bertfam convert``."""

import argparse
from pathlib import Path

from bertfam_tf.cli.common import Commands, add_command


def add(commands: Commands) -> None:
    text = "convert a saved task or any supported checkpoint to Hugging Face's format"
    parser = add_command(commands, "convert", run, text)
    parser.add_argument(
        "source",
        help="a saved task, the output directory of a recipe, or a checkpoint: a directory, "
        "package:NAME, or a hub id",
    )
    parser.add_argument("target", help="the directory to create; it is never overwritten")
    parser.add_argument("--family", help="its family, if the checkpoint does not name it")
    card = parser.add_argument_group("for the model card of a saved task")
    card.add_argument("--language", help="the code of the texts' language, such as en")
    card.add_argument("--license", help="an identifier of the hub, such as apache-2.0")
    card.add_argument("--base-model", metavar="ID", help="the hub id of the fine-tuned checkpoint")
    card.add_argument("--dataset", metavar="NAME", help="of the data that the run was scored on")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf import parsing, tasks
    from bertfam_tf.checkpoints import Checkpoint, convert
    from bertfam_tf.recipes.directory import METRICS, model_directory

    names = ("language", "license", "base_model", "dataset")
    card = {name: getattr(options, name) for name in names}
    saved = model_directory(options.source)
    if tasks.is_saved(saved):
        if options.family is not None:
            raise ValueError(f"--family is for checkpoints; {saved} is a saved task.")
        file = Path(options.source) / METRICS
        tasks.load(saved).save_pretrained(
            options.target, metrics=parsing.read_json(file) if file.is_file() else None, **card
        )
        print(options.target)
        return
    fields = [name for name, value in card.items() if value is not None]
    if fields:
        option = fields[0].replace("_", "-")
        raise ValueError(f"--{option} is for saved tasks; {saved} is a checkpoint.")
    if Checkpoint(saved, options.family).task_options:
        # Options of a task, which only the task can write.
        tasks.load_checkpoint(saved).save_pretrained(options.target)
        print(options.target)
        return
    print(convert(saved, options.target, family=options.family))
