"""``bertfam distill``."""

import argparse
import json

from bertfam_tf.cli.common import Commands, add_command, add_recipe


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "train a student to imitate a teacher with a recipe"
    parser = add_command(commands, "distill", run, text, resumes=True, in_batches=True)
    add_recipe(parser, "such as data.limit=1000")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import DistillRecipe

    recipe = load_recipe(options.recipe, options.override, DistillRecipe)
    from bertfam_tf.recipes import distill

    print(json.dumps(distill(recipe)))
