"""What all cards share: a typed config, and the Keras model around a card's wiring."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, Self

import keras

from bertfam_tf import registry
from bertfam_tf.names import unknown


@dataclass(frozen=True)
class Config:
    """Base of the cards' configs: a frozen dataclass whose fields all have defaults."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """A config from a dict.

        Raises:
            ValueError: for a key that is not a field (the text names the nearest one), or a value
                of another type than the field's.
        """
        types = typing.get_type_hints(cls)
        for name, value in values.items():
            if name not in types:
                raise ValueError(unknown(f"{cls.__name__} field", name, types))
            allowed = (float, int) if types[name] is float else types[name]
            if not isinstance(value, allowed) or (types[name] is not bool and value is True):
                raise ValueError(
                    f"{cls.__name__}.{name} is a {types[name].__name__}, not {value!r}."
                )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return dataclasses.asdict(self)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Backbone(keras.Model):
    """An encoder without heads: a dict of tensors in, a dict of tensors out.

    Args:
        family: a name from ``bertfam_tf.families()``.
        config: that family's config, or a dict of its fields.

    Call:
        inputs: dict of int32 tensors (batch, length): ``token_ids``, ``padding_mask`` (1 at real
            tokens, 0 at padding) and, where the family has segments, ``segment_ids``.

    Returns:
        Dict of ``sequence_output`` (batch, length, hidden), ``pooled_output`` (batch, hidden) where
        the family has a pooler, ``hidden_states`` (the embeddings' output, then each layer's) and
        ``attention_scores`` (each layer's (batch, heads, length, length), scaled, before mask and
        softmax). What nobody reads is pruned when a graph is compiled.
    """

    def __init__(self, family: str, config: Config | dict[str, Any], **kwargs):
        card = registry.get(family)
        fields = config if isinstance(config, dict) else config.to_dict()
        typed: Any = card.config.from_dict(fields)
        inputs, outputs = card.wire(typed)
        kwargs.setdefault("name", f"{family}_backbone")
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.family = family
        self.config = typed

    def get_config(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "config": self.config.to_dict(),
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> Backbone:
        config = dict(config)
        policy = config.pop("dtype", None)
        if policy is None:
            return cls(**config)
        # Layers take their policy when they are wired, so the model's has to rule meanwhile.
        previous = keras.config.dtype_policy()
        keras.config.set_dtype_policy(keras.saving.deserialize_keras_object(policy))
        try:
            return cls(**config)
        finally:
            keras.config.set_dtype_policy(previous)
