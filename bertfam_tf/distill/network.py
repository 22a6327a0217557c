"""The outputs of a teacher or a student that distillation terms read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bertfam_tf import registry
from bertfam_tf.models import Backbone
from bertfam_tf.tasks import Task

TASK = "task"


class Network:
    """A teacher or a student: a task, or a backbone without a task.

    Args:
        model: the task or the backbone.
        role: its name in error messages.

    Attributes:
        task: the task; None for a backbone.
        inputs: the model's inputs by name.
        is_causal: whether attention is causal.

    Raises:
        ValueError: if the task's inputs differ from the backbone's, as in multiple choice.
    """

    def __init__(self, model: Task | Backbone, role: str):
        self.role = role
        self.task = model if isinstance(model, Task) else None
        self.backbone: Backbone = model if isinstance(model, Backbone) else model.backbone
        self.inputs: Mapping[str, Any] = (
            self.backbone.token_inputs if self.task is None else self.task.components.inputs
        )
        self.is_causal = registry.get(self.backbone.family).is_causal
        ranks = {name: len(x.shape) for name, x in self.backbone.token_inputs.items()}
        if any(len(x.shape) != ranks.get(name, 2) for name, x in self.inputs.items()):
            raise ValueError(
                f"A {type(model).__name__} cannot be the {role} of a distillation, which reads one "
                "row of tokens of each example. Distil backbones or a MaskedLM, and fine-tune the "
                "student."
            )

    @property
    def num_layers(self) -> int:
        return len(self.backbone.output["hidden_states"]) - 1

    def spec(self, name: str, layer: int) -> Any:
        """Returns the symbolic output of a layer, which has the shape of ``name``.

        Raises:
            ValueError: if the backbone has no such output.
        """
        backbone = self.backbone
        if name in backbone.output:
            return backbone.output[name][layer]
        try:
            return backbone(backbone.input, outputs=name)[name][layer]
        except ValueError as error:
            raise ValueError(
                f"The {self.role}'s {backbone.family} backbone has no {name}: {error}"
            ) from None

    def outputs(
        self, inputs: Mapping[str, Any], names: Iterable[str], task: bool, **options: Any
    ) -> dict[str, Any]:
        """Computes outputs of the backbone by name, and of the task under ``TASK``.

        Args:
            inputs: the model's inputs by name.
            names: names of the backbone's outputs.
            task: whether to compute the task's outputs.
            **options: keyword arguments of the backbone's call.
        """
        components = None if self.task is None else self.task.components
        needed = {*names, *([components.source] if task and components else [])}
        computed = self.backbone(dict(inputs), outputs=sorted(needed), **options) if needed else {}
        outputs = {name: computed[name] for name in names}
        if task and components is not None:
            assert components.read is not None
            outputs[TASK] = components.read(computed, dict(inputs))
        return outputs

    def distributions(self, outputs: Any, inputs: Mapping[str, Any], targets: Any) -> Any:
        """Returns logits and weights; see ``tasks.components.TaskComponents.distributions``."""
        assert self.task is not None
        assert self.task.components.distributions is not None
        return self.task.components.distributions(outputs, dict(inputs), targets)
