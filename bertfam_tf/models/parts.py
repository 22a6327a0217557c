"""Layers by name, so that a model can be wired from existing layers."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import keras

from bertfam_tf.layers import RealTokens, SingleExample, TokenLayout
from bertfam_tf.names import unknown


class Parts(Mapping[str, keras.layers.Layer]):
    """The layers of a backbone by name, created when wiring first requests them.

    Models that are wired from the same layers share their weights, and so do calls within a model
    that ask for the same name.

    Args:
        layers: existing layers by name; they keep their weights and their dtype policy.
        dtype: the dtype policy of new layers; None for Keras' global one.
        unpadded: whether to wire layers so that they compute real tokens only, where the family
            can; weights and outputs are the same.
        single_example: whether to wire layers for batches of one example without padding, where
            the family can compute real tokens only.
        outputs: the names of the outputs that the model has; None for all.
        cache_in_place: whether new keys and values are written into the cache's buffers, after the
            first ``cache_length`` positions, instead of appended.

    Attributes:
        can_unpad: whether the wiring asked for a layout, so that padding can be left out.

    Raises:
        ValueError: if a layer's own name, the prefix of its variables' paths, differs.
    """

    def __init__(
        self,
        layers: Mapping[str, keras.layers.Layer] | None = None,
        dtype: Any = None,
        *,
        unpadded: bool = False,
        single_example: bool = False,
        outputs: Collection[str] | None = None,
        cache_in_place: bool = False,
    ):
        self._layers = dict(layers or {})
        self.unpadded = unpadded
        self.single_example = single_example
        self.can_unpad = False
        self.outputs = outputs
        self.cache_in_place = cache_in_place
        self._layouts: dict[int, TokenLayout] = {}
        self.dtype_policy = keras.dtype_policies.get(dtype)
        for name, layer in self._layers.items():
            if layer.name != name:
                raise ValueError(f"The layer {layer.name!r} cannot be used as {name!r}.")

    def __call__(self, name: str, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns the layer ``name``, which ``make(*args, **kwargs, name=…, dtype=…)`` creates."""
        if name not in self._layers:
            self._layers[name] = make(*args, **kwargs, name=name, dtype=self.dtype_policy)
        return self._layers[name]

    def has_output(self, name: str) -> bool:
        """Returns whether the model has an output of this name, so that wiring must compute it."""
        return self.outputs is None or name in self.outputs

    def names(self, *outputs: str) -> bool:
        """Returns whether one of these outputs was requested by name, not just as one of all."""
        return self.outputs is not None and not set(outputs).isdisjoint(self.outputs)

    def layout(self, padding_mask: Any) -> TokenLayout | SingleExample | None:
        """Returns where the real tokens are; None where the wiring is padded.

        Args:
            padding_mask: (batch, length).
        """
        self.can_unpad = True
        if self.single_example:
            return SingleExample()
        if not self.unpadded:
            return None
        if id(padding_mask) not in self._layouts:
            real_tokens = RealTokens(name="real_tokens", dtype=self.dtype_policy)
            self._layouts[id(padding_mask)] = real_tokens(padding_mask)
        return self._layouts[id(padding_mask)]

    def subset(self, *names: str) -> dict[str, keras.layers.Layer]:
        """Returns some of the layers, by name.

        Raises:
            ValueError: if a name is unknown; the message names the nearest.
        """
        for name in names:
            if name not in self._layers:
                raise ValueError(unknown("part", name, self._layers))
        return {name: self._layers[name] for name in names}

    def __getitem__(self, name: str) -> keras.layers.Layer:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)
