"""Pretraining of packed examples with Keras on JAX, without TensorFlow."""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.objectives import MaskedTokens, NextTokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.training import optimizers
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import TrainConfig
from tools.gpu_pretrain.masks import Masking

_OBJECTIVES = {"mlm": ("masked_lm", MaskedTokens), "clm": ("causal_lm", NextTokens)}
# Sentences of minimal pairs are scored in rows of these widths; a width is compiled once.
_WIDTHS = (16, 64)
# In a call, the most rows, and the most tokens whose logits are computed.
_ROWS, _LOGITS = 4096, 2**15
# Steps of a schedule that is evaluated at a share of them.
_TICKS = 1_000_000


class ByProgress(keras.optimizers.schedules.LearningRateSchedule):
    """A recipe's schedule by the share of the training that is over, whatever its steps.

    Args:
        settings: the recipe's ``train`` section.

    Attributes:
        done: the share, from 0 to 1, set before the optimizer is applied.
    """

    def __init__(self, settings: TrainConfig):
        self.settings = settings
        self.schedule = optimizers.schedule_of(settings, _TICKS)
        self.done: Any = 0.0

    def __call__(self, step: Any) -> Any:
        return self.schedule(self.done * _TICKS)

    def get_config(self) -> dict[str, Any]:
        return {}


class Pretraining:
    """A model, its optimizer, and compiled functions of a step and of evaluation.

    Args:
        pack: arrays and the settings that ``tools.gpu_pretrain.pack`` wrote.
        settings: the recipe's, with changes.
    """

    def __init__(self, pack: Mapping[str, np.ndarray], settings: dict[str, Any]):
        self.settings, self.train = settings, TrainConfig(**settings["train"])
        keras.utils.set_random_seed(self.train.seed)
        model, special = settings["model"], settings["special_ids"]
        (objective,) = settings["objectives"]
        self.causal = objective == "clm"
        self.length = settings["data"]["length"]
        self.mask_id, self.pad_id = special["mask"], special["pad"]
        policy = settings["train_precision"]
        self.backbone = bf.build(model["family"], model["size"], dtype=policy, **model["overrides"])
        name, loss = _OBJECTIVES[objective]
        self.head = heads.build(self.backbone, name)
        self.objective = loss(self.head)
        names = [n for n in self.backbone.input if n in ("token_ids", "padding_mask")]
        self.inputs = {name: self.backbone.input[name] for name in names}
        self.learner = Learner(
            self.backbone.input,
            {"sequence_output": self.backbone.output["sequence_output"]},
            [self.objective],
        )
        self.rate = ByProgress(self.train)
        self.optimizer = optimizers.from_settings(self.train, _TICKS, schedule=self.rate)
        self.optimizer.build(self.learner.trainable_variables)
        self.masking = None if self.causal else Masking(pack, self.mask_id, settings["masking"])
        self.rows = {split: jnp.asarray(self._rows(pack, split)) for split in ("train", "dev")}
        self.pairs = self._pairs(pack)
        self.state = tuple(
            [v.value for v in variables]
            for variables in (
                self.learner.trainable_variables,
                self.learner.non_trainable_variables,
                self.optimizer.variables,
            )
        )
        self._step = jax.jit(self._make_step(), donate_argnums=0)
        self._held_out = jax.jit(self._make_held_out())
        self._scores = jax.jit(self._causal_scores if self.causal else self._masked_scores)

    def _rows(self, pack: Mapping[str, np.ndarray], split: str) -> np.ndarray:
        """Examples with special tokens and padding, uint16 (examples, length)."""
        lengths = pack[f"{split}_lengths"].astype("int64")
        return _padded(pack[f"{split}_ids"], lengths, self._special(), self.length)

    def _special(self) -> tuple[int, int, int]:
        special = self.settings["special_ids"]
        return special["cls"], special["sep"], special["pad"]

    def _pairs(self, pack: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Minimal pairs: for each width ids (pairs, 2, width), and the paradigm of each pair."""
        lengths = pack["pairs_lengths"].astype("int64")
        rows = _padded(pack["pairs_ids"], lengths, self._special(), max(_WIDTHS))
        rows = rows.reshape(-1, 2, max(_WIDTHS))
        longest = lengths.reshape(-1, 2).max(1) + 2
        groups, before = [], 0
        for width in _WIDTHS:
            chosen = (longest > before) & (longest <= width)
            groups.append((rows[chosen, :, :width], pack["pairs_paradigms"][chosen]))
            before = width
        return groups

    def _batch(self, tokens: Any, seeds: Any) -> Batch:
        tokens = tokens.astype("int32")
        mask = (tokens != self.pad_id).astype("int32")
        if self.masking is None:
            return Batch({"token_ids": tokens, "padding_mask": mask}, None, None)
        masked = self.masking(tokens, mask, seeds)
        targets = {"positions": masked.positions, "token_ids": masked.targets}
        return Batch({"token_ids": masked.token_ids, "padding_mask": mask}, targets, masked.weights)

    def _loss(self, batch: Batch, training: bool) -> tuple[Any, Any]:
        """The sum of the losses of tokens, and their number."""
        inputs = self.backbone.complete(batch.inputs)
        outputs = self.learner(inputs, training=training)
        found = self.objective.loss(outputs, self.objective.heads, Batch(inputs, *batch[1:]))
        return next(iter(found.values()))

    def _stateless(self, function: Callable[[], Any], trainable: Any, others: Any) -> tuple:
        variables = self.learner.trainable_variables, self.learner.non_trainable_variables
        mapping = [
            *zip(variables[0], trainable, strict=True),
            *zip(variables[1], others, strict=True),
        ]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            value = function()
            return value, [scope.get_current_value(v) for v in variables[1]]

    def _make_step(self) -> Callable[..., tuple]:
        def step(state: tuple, rows: Any, index: Any, seeds: Any, done: Any) -> tuple:
            trainable, others, moments = state
            batch = self._batch(rows[index], seeds)

            def mean(weights: Any) -> tuple:
                (total, count), after = self._stateless(
                    lambda: self._loss(batch, True), weights, others
                )
                return total / count, after

            (loss, others), gradients = jax.value_and_grad(mean, has_aux=True)(trainable)
            self.rate.done = done
            trainable, moments = self.optimizer.stateless_apply(moments, gradients, trainable)
            return (trainable, others, moments), loss

        return step

    def _make_held_out(self) -> Callable[..., tuple]:
        def held_out(state: tuple, tokens: Any, seeds: Any) -> tuple:
            batch = self._batch(tokens, seeds)
            return self._stateless(lambda: self._loss(batch, False), *state[:2])[0]

        return held_out

    def held_out(self) -> float:
        """The loss of the dev split, whose masks are the same in each call."""
        rows, size = self.rows["dev"], self.train.batch_size
        total = count = 0.0
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            part = jnp.pad(part, ((0, size - len(part)), (0, 0)), constant_values=self.pad_id)
            seeds = np.stack([np.zeros(size), start + np.arange(size)], 1).astype("int32")
            some = self._held_out(self.state, part, seeds)
            total, count = total + float(some[0]), count + float(some[1])
        return total / count

    def _log_probabilities(self, state: tuple, tokens: Any, select: Any, targets: Any) -> Any:
        """Log-probabilities (…) of ``targets``, at the vectors that ``select`` takes."""

        def compute() -> Any:
            mask = (tokens != self.pad_id).astype("int32")
            inputs = self.backbone.complete({"token_ids": tokens, "padding_mask": mask})
            x = self.head.select(self.learner(inputs, training=False))
            return self.head.logits(select(x), targets).astype("float32")

        return self._stateless(compute, *state[:2])[0]

    def _causal_scores(self, state: tuple, tokens: Any) -> Any:
        targets = jnp.where(tokens == self._special()[1], self.pad_id, tokens)[:, 1:]
        probabilities = self._log_probabilities(state, tokens, lambda x: x[:, :-1], targets)
        return jnp.where(targets == self.pad_id, 0.0, probabilities).sum(1)

    def _masked_scores(self, state: tuple, tokens: Any) -> Any:
        count, length = tokens.shape
        at = jnp.eye(length, dtype=bool)[None]
        rows = jnp.where(at, self.mask_id, tokens[:, None]).reshape(-1, length)
        places = jnp.tile(jnp.arange(length), count)

        def select(x: Any) -> Any:
            return x[jnp.arange(len(places)), places]

        probabilities = self._log_probabilities(state, rows, select, tokens.reshape(-1))
        ordinary = ~jnp.isin(tokens, jnp.asarray(self._special()))
        return jnp.where(ordinary, probabilities.reshape(count, length), 0.0).sum(1)

    def minimal_pairs(self, every: int = 1) -> dict[str, float]:
        """The share of minimal pairs whose good sentence is more probable, by paradigm and mean.

        Args:
            every: takes one pair of so many.
        """
        right: list[np.ndarray] = []
        chosen: list[np.ndarray] = []
        for rows, paradigms in self.pairs:
            rows, width = rows[::every].reshape(-1, rows.shape[-1]), rows.shape[-1]
            size = _LOGITS // width if self.causal else _ROWS // width
            scores = []
            for start in range(0, len(rows), size):
                part = rows[start : start + size].astype("int32")
                more = ((0, size - len(part)), (0, 0))
                scores.append(self._scores(self.state, np.pad(part, more, mode="edge")))
            good, bad = np.concatenate([[], *scores])[: len(rows)].reshape(-1, 2).T
            right.append(good > bad)
            chosen.append(paradigms[::every])
        hits, numbers = np.concatenate(right), np.concatenate(chosen)
        found = {
            name: 100 * float(np.mean(hits[numbers == i]))
            for i, name in enumerate(self.settings["paradigms"])
            if (numbers == i).any()
        }
        return {**found, "mean": float(np.mean(list(found.values())))} if found else {}

    def run(
        self,
        minutes: float | None = None,
        steps: int | None = None,
        evaluations: int = 8,
        pairs: int = 10,
        report: Callable[[dict[str, Any]], None] = print,
    ) -> list[dict[str, Any]]:
        """Trains for a time or a number of steps, and evaluates at equal distances.

        The learning rate rises and falls with the share of the time or the steps that is over;
        compilation and evaluation do not count as time.

        Args:
            minutes, steps: one of them.
            evaluations: their number.
            pairs: evaluations before the last take one minimal pair of so many.
            report: called with each evaluation.
        """
        settings, count = self.train, len(self.rows["train"])
        history: list[dict[str, Any]] = []
        waiting: list[jax.Array] = []
        losses: list[jax.Array] = []
        spent, begin, step = 0.0, 0.0, 0
        order, number = np.zeros(0, "int64"), itertools.count()
        rng = np.random.default_rng(settings.seed)
        size = settings.batch_size
        while True:
            if step == 1:  # after compilation
                jax.block_until_ready(self.state)
                begin = time.perf_counter()
            seconds = spent + (time.perf_counter() - begin if step else 0.0)
            done = step / steps if steps else seconds / (60 * minutes)
            if done >= (len(history) + 1) / evaluations or done >= 1:
                jax.block_until_ready(self.state)
                spent += time.perf_counter() - begin
                last = done >= 1
                row = {
                    "minutes": spent / 60,
                    "steps": step,
                    "tokens": step * size * self.length,
                    "passes": step * size / count,
                    "loss": float(np.mean([float(x) for x in losses])),
                    "held_out": self.held_out(),
                    "blimp": self.minimal_pairs(pairs).get("mean"),
                }
                history.append(row)
                losses = []
                report(row)
                if last:
                    return history
                begin = time.perf_counter()
            if len(order) < size:
                copy = next(number)
                order = np.concatenate([order, rng.permutation(count)])
            index, order = order[:size], order[size:]
            copies = self.settings["pass_seeds"]
            seeds = np.full(size, copies[copy % len(copies)])
            self.state, loss = self._step(
                self.state,
                self.rows["train"],
                index.astype("int32"),
                np.stack([seeds, index], 1).astype("int32"),
                np.float32(min(done, 1.0)),
            )
            losses.append(loss)
            waiting.append(loss)
            if len(waiting) > 2:
                waiting.pop(0).block_until_ready()
            step += 1

    def weights(self) -> dict[str, np.ndarray]:
        """The trained weights by path, float32."""
        variables = [*self.learner.trainable_variables, *self.learner.non_trainable_variables]
        values = [*self.state[0], *self.state[1]]
        return {
            v.path: np.asarray(x, "float32")
            for v, x in zip(variables, values, strict=True)
            if "seed_generator" not in v.path and jnp.issubdtype(x.dtype, jnp.floating)
        }


def _padded(
    ids: np.ndarray, lengths: np.ndarray, special: tuple[int, int, int], width: int
) -> np.ndarray:
    first, last, padding = special
    rows = np.full((len(lengths), width), padding, "uint16")
    rows[:, 0] = first
    position = np.arange(width)[None]
    rows[(position > 0) & (position <= lengths[:, None])] = ids
    rows[np.arange(len(lengths)), lengths + 1] = last
    return rows


def save(weights: Mapping[str, np.ndarray], folder: Path, part_bytes: int = 15 * 2**20) -> None:
    """Writes weights as bfloat16 in files of at most ``part_bytes``, and ``weights.json``.

    The bytes with signs and exponents come first, compressed: two thirds of the size remain.
    """
    names = sorted(weights)
    flat = np.concatenate([np.asarray(weights[name], "float32").ravel() for name in names])
    planes = np.asarray(jnp.asarray(flat, "bfloat16")).view("uint8").reshape(-1, 2).T
    high, low = (np.ascontiguousarray(planes[i]).tobytes() for i in (1, 0))
    data = zlib.compress(high) + low
    for number, start in enumerate(range(0, len(data), part_bytes)):
        (folder / f"weights-{number:02}.bin").write_bytes(data[start : start + part_bytes])
    shapes = {name: list(weights[name].shape) for name in names}
    (folder / "weights.json").write_text(json.dumps(shapes, indent=1) + "\n", "utf-8")
