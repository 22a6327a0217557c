"""A teacher or a student, as the terms of a distillation read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bertfam_tf import registry
from bertfam_tf.models import Backbone
from bertfam_tf.tasks import Task

TASK = "task"


class Network:
    """A backbone, and the head of a task on it.

    Args:
        model: a task, or a backbone without one.
        role: what error messages call it.

    Attributes:
        task: None for a backbone.
        inputs: of the model, by name.
        is_causal: whether tokens attend to themselves and to earlier ones only.

    Raises:
        ValueError: for a task whose inputs are not the backbone's, such as multiple choice.
    """

    def __init__(self, model: Task | Backbone, role: str):
        self.role = role
        self.task = model if isinstance(model, Task) else None
        self.backbone: Backbone = model if isinstance(model, Backbone) else model.backbone
        self.inputs: Mapping[str, Any] = (
            self.backbone.token_inputs if self.task is None else self.task.components.inputs
        )
        self.is_causal = registry.get(self.backbone.family).is_causal
        own = {name: len(each.shape) for name, each in self.backbone.token_inputs.items()}
        if any(len(each.shape) != own.get(name, 2) for name, each in self.inputs.items()):
            raise ValueError(f"A {type(model).__name__} cannot be the {role} of a distillation.")

    @property
    def num_layers(self) -> int:
        return len(self.backbone.output["hidden_states"]) - 1

    def spec(self, name: str, layer: int) -> Any:
        """The symbolic output of a layer, such as the widths of ``attention_scores``.

        Raises:
            ValueError: for an output that this backbone does not have.
        """
        backbone = self.backbone
        if name not in backbone.output:
            try:
                found = backbone(backbone.input, outputs=name)[name]
            except ValueError as error:
                raise ValueError(
                    f"The {self.role}'s {backbone.family} backbone has no {name}: {error}"
                ) from None
        else:
            found = backbone.output[name]
        return found[layer]

    def outputs(
        self, inputs: Mapping[str, Any], names: Iterable[str], task: bool, **given: Any
    ) -> dict[str, Any]:
        """Outputs of the backbone by name, and of the task under ``TASK``.

        Args:
            inputs: of the model.
            names: of the backbone's outputs.
            task: whether to compute the task's.
            **given: keyword arguments of the backbone's call.
        """
        parts = None if self.task is None else self.task.components
        needed = {*names, *([parts.source] if task and parts else [])}
        found = self.backbone(dict(inputs), outputs=sorted(needed), **given) if needed else {}
        kept = {name: found[name] for name in names}
        if task and parts is not None:
            assert parts.read is not None
            kept[TASK] = parts.read(found, dict(inputs))
        return kept

    def distributions(self, outputs: Any, inputs: Mapping[str, Any], targets: Any) -> Any:
        """Logits and weights, as ``tasks.components.TaskComponents.distributions``."""
        assert self.task is not None
        assert self.task.components.distributions is not None
        return self.task.components.distributions(outputs, dict(inputs), targets)
