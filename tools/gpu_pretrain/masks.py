"""The masks of ``bertfam_tf.corpora.Masking`` on JAX, number by number the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# The purposes of random numbers in ``bertfam_tf.corpora.masking``.
_COUNT, _PIECE, _ANCHOR, _LENGTH, _FIT, _REPLACE, _RANDOM = range(7)


class Masked(NamedTuple):
    """A masked batch, as ``Masking`` returns it, with a fixed number of predictions.

    Fields:
        token_ids: int32 (batch, length), with masks.
        positions, targets: int32 (batch, predictions); 0 after an example's last one.
        weights: float32 (batch, predictions), 1 for predictions, 0 after an example's last one.
    """

    token_ids: jax.Array
    positions: jax.Array
    targets: jax.Array
    weights: jax.Array


class Masking:
    """Selects and replaces tokens, in functions that ``jax.jit`` compiles.

    Args:
        vocabulary: arrays ``special``, ``starts`` and ``ends``, bool (vocabulary,).
        mask_id: the mask token.
        settings: ``rate``, ``unit`` (``piece`` or ``word``), ``masked``, ``random`` and
            ``max_predictions`` of ``MaskingConfig``.
    """

    def __init__(
        self, vocabulary: Mapping[str, np.ndarray], mask_id: int, settings: Mapping[str, Any]
    ):
        if settings["unit"] not in ("piece", "word"):
            raise ValueError(f"masking.unit must be piece or word, got {settings['unit']}.")
        self._special = jnp.asarray(vocabulary["special"])
        self._ordinary = jnp.asarray(np.flatnonzero(~vocabulary["special"]).astype("int32"))
        self._starts, self._ends = (jnp.asarray(vocabulary[name]) for name in ("starts", "ends"))
        self._mask_id = mask_id
        self._settings = settings

    def __call__(self, token_ids: jax.Array, padding_mask: jax.Array, seeds: jax.Array) -> Masked:
        """Masks a batch.

        Args:
            token_ids, padding_mask: int32 (batch, length).
            seeds: int32 (batch, 2): the seed of the pass, and the index of the example.
        """
        rate, most = self._settings["rate"], self._settings["max_predictions"]
        special = self._special[token_ids]
        candidates = (padding_mask > 0) & ~special
        draw = _Numbers(seeds)
        number = jnp.float32(rate) * candidates.sum(1).astype("float32")
        count = jnp.minimum(jnp.floor(number + draw(_COUNT)).astype("int32"), most)
        if self._settings["unit"] == "piece":
            keys = jnp.where(candidates, draw.positions(_PIECE, token_ids), -1.0)
            ranks = jnp.argsort(jnp.argsort(-keys, axis=1), axis=1)
            selected = candidates & (ranks < count[:, None])
        else:
            selected = self._words(token_ids, special, candidates, count, draw)
        return self._replaced(token_ids, selected, draw)

    def _words(
        self,
        token_ids: jax.Array,
        special: jax.Array,
        candidates: jax.Array,
        count: jax.Array,
        draw: _Numbers,
    ) -> jax.Array:
        """Selects whole words until ``count`` tokens are selected; bool (batch, length)."""
        starts, ends = self._starts[token_ids], self._ends[token_ids]
        begins = starts | _before(ends, True) | special | _before(special, True)
        words = jnp.cumsum(begins, 1)
        first = candidates & ((words != _before(words, 0)) | ~_before(candidates, False))
        most = self._settings["max_predictions"]

        def unfinished(state: tuple) -> jax.Array:
            _, _, free, left = state
            return ((left > 0) & free.any(1)).any()

        def propose(state: tuple) -> tuple:
            step, selected, free, left = state
            number = free.sum(1)
            index = (draw(_ANCHOR, step) * number.astype("float32")).astype("int32") + 1
            index = jnp.minimum(index, number)
            anchor = free & (jnp.cumsum(free, 1) == index[:, None])
            word = jnp.where(anchor, words, 0).sum(1)
            run = (words == word[:, None]) & candidates & ~selected
            size = run.sum(1)
            fits = left.astype("float32") >= draw(_FIT, step) * size.astype("float32")
            fits &= selected.sum(1) + size <= most
            selected |= run & (fits & (left > 0) & (number > 0))[:, None]
            return step + 1, selected, free & ~run, left - size

        start = jnp.zeros((), "int32"), jnp.zeros_like(candidates), first, count
        return jax.lax.while_loop(unfinished, propose, start)[1]

    def _replaced(self, token_ids: jax.Array, selected: jax.Array, draw: _Numbers) -> Masked:
        settings, length = self._settings, token_ids.shape[1]
        fate = draw.positions(_REPLACE, token_ids)
        random = draw.positions(_RANDOM, token_ids) * len(self._ordinary)
        random = self._ordinary[random.astype("int32")]
        masked = jnp.float32(settings["masked"])
        changed = jnp.float32(settings["masked"] + settings["random"])
        other = jnp.where(fate < masked, self._mask_id, random)
        replaced = jnp.where(fate < changed, other, token_ids)
        position = jnp.arange(length)[None]
        order = jnp.argsort(jnp.where(selected, position, length), axis=1)
        order = order[:, : settings["max_predictions"]]
        there = jnp.take_along_axis(selected, order, 1)
        return Masked(
            jnp.where(selected, replaced, token_ids).astype("int32"),
            jnp.where(there, order, 0).astype("int32"),
            jnp.where(there, jnp.take_along_axis(token_ids, order, 1), 0).astype("int32"),
            there.astype("float32"),
        )


class _Numbers:
    def __init__(self, seeds: jax.Array):
        first, second = seeds.astype("uint32").T
        self._state = _mixed(_mixed(first + np.uint32(0x9E3779B9)) ^ second)

    def __call__(self, purpose: int, step: Any = 0) -> jax.Array:
        return _unit(_mixed(self._of(purpose) + jnp.asarray(step).astype("uint32")))

    def positions(self, purpose: int, like: jax.Array) -> jax.Array:
        index = jnp.arange(like.shape[1], dtype="uint32")
        return _unit(_mixed(self._of(purpose)[:, None] + index))

    def _of(self, purpose: int) -> jax.Array:
        return _mixed(self._state + np.uint32(purpose * 0x85EBCA6B % 2**32))


def _mixed(x: jax.Array) -> jax.Array:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _unit(x: jax.Array) -> jax.Array:
    return (x >> np.uint32(8)).astype("float32") * jnp.float32(2.0**-24)


def _before(x: jax.Array, first: Any) -> jax.Array:
    return jnp.pad(x, ((0, 0), (1, 0)), constant_values=first)[:, :-1]
