"""``bertfam pretrain``."""

import argparse
import json

from bertfam_tf.cli.common import Commands, add_command, add_recipe, import_keras


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "pretrain", run, "train a language model with a recipe")
    add_recipe(parser, "such as train.epochs=1")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import PretrainRecipe

    recipe = load_recipe(options.recipe, options.override, PretrainRecipe)
    import_keras()
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes import pretrain

    print(json.dumps(pretrain(recipe, flops=flops_per_token), ensure_ascii=False))
