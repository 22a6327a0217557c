"""``bertfam train``, ``bertfam pretrain`` and ``bertfam distill``, which run recipes."""

import argparse

from bertfam_tf.cli.common import Commands, add_command, add_recipe, print_json

_TEXTS = {
    "train": "fine-tune with a recipe; an interrupted run resumes",
    "pretrain": "train a language model with a recipe",
    "distill": "train a student to imitate a teacher with a recipe",
}


def add(commands: Commands) -> None:
    """Adds the commands."""
    for name, text in _TEXTS.items():
        parser = add_command(commands, name, run, text, resumes=True, in_batches=True)
        example = "data.limit=1000" if name == "distill" else "train.epochs=1"
        add_recipe(parser, f"such as {example}")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import DistillRecipe, MultiTaskRecipe, PretrainRecipe, Recipe

    kinds = {
        "train": Recipe | MultiTaskRecipe,
        "pretrain": PretrainRecipe,
        "distill": DistillRecipe,
    }
    # A wrong recipe is an error before the code that trains is imported.
    recipe = load_recipe(options.recipe, options.override, kinds[options.command])
    from bertfam_tf import recipes
    from bertfam_tf.plan import flops_per_token

    print_json(getattr(recipes, options.command)(recipe, flops=flops_per_token))
