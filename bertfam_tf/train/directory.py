"""The directory that a recipe's run writes into."""

import json
import logging
from typing import Any

from bertfam_tf.config import PretrainRecipe, Recipe, expand
from bertfam_tf.train.backup import Backup

RECIPE, MODEL, METRICS = "recipe.yaml", "model", "metrics.json"
_log = logging.getLogger(__name__)


class RunDirectory:
    """Recipe, states to go on from, model and metrics of one run.

    Args:
        recipe: its ``output`` is the directory.

    Raises:
        ValueError: when the directory holds another recipe's run.
    """

    def __init__(self, recipe: Recipe | PretrainRecipe) -> None:
        self.recipe = recipe
        self.path = expand(recipe.output)
        stored = self.path / RECIPE
        # A recipe that failed before its first state was written may be mended.
        begun = self.backup().exists or (self.path / MODEL).exists()
        if begun and stored.is_file() and stored.read_text("utf-8") != recipe.to_yaml():
            raise ValueError(
                f"{self.path} holds a run of another recipe ({stored}); choose another output, or "
                "remove the directory."
            )

    def backup(self, every: int = 1) -> Backup:
        """The states, written every so many steps."""
        return Backup(self.path / "backup", every)

    def metrics(self) -> dict[str, Any] | None:
        """What a run that is done has written; None for one that is not."""
        file = self.path / METRICS
        if not file.is_file():
            return None
        _log.info("%s is done already.", self.path)
        return json.loads(file.read_text("utf-8"))

    def begin(self) -> None:
        """Makes the directory and writes the recipe."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / RECIPE).write_text(self.recipe.to_yaml(), "utf-8")

    def finish(self, metrics: dict[str, Any]) -> None:
        """Writes the metrics, which say that the run is done, and removes its states."""
        # They appear last and whole.
        temporary = self.path / f".{METRICS}"
        temporary.write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n", "utf-8")
        temporary.rename(self.path / METRICS)
        self.backup().clear()
