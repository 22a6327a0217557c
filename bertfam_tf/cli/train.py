"""``bertfam train``."""

import argparse
import json

from bertfam_tf.cli.common import Commands, add_command, add_recipe


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "fine-tune with a recipe; an interrupted run resumes"
    parser = add_command(commands, "train", run, text, resumes=True, in_batches=True)
    add_recipe(parser, "such as train.epochs=1")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import MultiTaskRecipe, Recipe

    recipe = load_recipe(options.recipe, options.override, Recipe | MultiTaskRecipe)
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes.multi_task import train

    print(json.dumps(train(recipe, flops=flops_per_token)))
