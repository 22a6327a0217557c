"""``bertfam train``, ``bertfam pretrain`` and ``bertfam distill``, which run recipes."""

import argparse

from bertfam_tf.cli.common import Commands, add_command, add_recipe, print_json

# By command: its help, and an override as an example.
_COMMANDS = {
    "train": ("fine-tune with a recipe; an interrupted run resumes", "train.epochs=1"),
    "pretrain": ("train a language model with a recipe", "train.epochs=1"),
    "distill": ("train a student to imitate a teacher with a recipe", "data.limit=1000"),
}


def add(commands: Commands) -> None:
    """Adds the commands."""
    for name, (text, example) in _COMMANDS.items():
        parser = add_command(commands, name, run, text, resumes=True, in_batches=True)
        add_recipe(parser, f"such as {example}")


def run(options: argparse.Namespace) -> None:
    """Runs the recipe and prints its metrics as JSON."""
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import DistillRecipe, MultiTaskRecipe, PretrainRecipe, Recipe

    kinds = {
        "train": Recipe | MultiTaskRecipe,
        "pretrain": PretrainRecipe,
        "distill": DistillRecipe,
    }
    # Before TensorFlow is imported, so that an error in the recipe appears at once.
    recipe = load_recipe(options.recipe, options.override, kinds[options.command])
    from bertfam_tf import recipes
    from bertfam_tf.plan import flops_per_token

    print_json(getattr(recipes, options.command)(recipe, flops=flops_per_token))
