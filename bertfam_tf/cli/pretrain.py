"""``bertfam pretrain``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command, add_recipe, print_json


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "train a language model with a recipe"
    parser = add_command(commands, "pretrain", run, text, resumes=True, in_batches=True)
    add_recipe(parser, "such as train.epochs=1")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import PretrainRecipe

    recipe = load_recipe(options.recipe, options.override, PretrainRecipe)
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes import pretrain

    print_json(pretrain(recipe, flops=flops_per_token))
