"""Trains language models on long streams, segment by segment (Transformer-XL, arXiv 1901.02860)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.corpora.token_streams import segments
from bertfam_tf.heads import Head
from bertfam_tf.models import Backbone
from bertfam_tf.objectives import NextTokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.training.learner import Learner, SingleLossTracker


class StreamMemory:
    """The memory of the previous batch for each layer of a backbone.

    A step reads ``held``, for all rows or in micro-batches, and collects the next memory of these
    rows; then ``advance`` moves it to ``held``.

    Args:
        specs: symbolic inputs of the backbone, (batch, memory length, hidden) for each layer.
    """

    def __init__(self, specs: Any):
        self.held, self._collected = ([self._variable(spec) for spec in specs] for _ in range(2))

    @staticmethod
    def _variable(spec: Any) -> tf.Variable:
        # Each replica of a strategy has its own examples and memory.
        return tf.Variable(
            tf.zeros([0, 0, spec.shape[-1]], spec.dtype),
            shape=spec.shape,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def empty(self, batch: Any) -> tuple[tf.Tensor, ...]:
        """Returns an empty memory."""
        return tuple(tf.zeros([batch, 0, v.shape[-1]], v.dtype) for v in self.held)

    def read(self, begins: Any) -> tuple[tf.Tensor, ...]:
        """Returns the memory of the next rows, empty at the start of a stream."""
        fresh, rows = tf.reduce_all(begins > 0), tf.shape(begins)[0]
        memory = []
        for empty, held, collected in zip(
            self.empty(rows), self.held, self._collected, strict=True
        ):

            def kept(held: Any = held, collected: Any = collected) -> tf.Tensor:
                first = tf.shape(collected.read_value())[0]
                return held.read_value()[first : first + rows]

            memory.append(tf.cond(fresh, lambda empty=empty: empty, kept))
        return tuple(memory)

    def collect(self, memory: Any) -> list[Any]:
        """Appends the next memory of rows; returns the assignments."""
        assignments = []
        for collected, rows in zip(self._collected, memory, strict=True):
            before = collected.read_value()

            def both(before: tf.Tensor = before, rows: tf.Tensor = rows) -> tf.Tensor:
                return tf.concat([before, rows], axis=0)

            # Before the first rows, the memory length is 0 and differs from the rows'.
            added = tf.cond(tf.shape(before)[0] > 0, both, lambda rows=rows: rows)
            assignments.append(collected.assign(added))
        return assignments

    def advance(self) -> None:
        """Moves the collected memory to ``held``."""
        for held, collected in zip(self.held, self._collected, strict=True):
            held.assign(collected.read_value())
        self.discard()

    def discard(self) -> None:
        """Clears the collected memory, such as after a failed step."""
        for collected in self._collected:
            collected.assign(tf.zeros([0, 0, collected.shape[-1]], collected.dtype))


class ReadMemory(keras.layers.Layer):
    """Returns the memory of the previous batch, empty at the start of a stream.

    Training and evaluation have separate memories, so evaluation does not affect training.

    Args:
        specs: the same as for ``StreamMemory``.

    Call:
        begins: int32 (batch,), 1 at the start of a stream.

    Returns:
        One tensor per layer.
    """

    def __init__(self, specs: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.training, self.evaluation = StreamMemory(specs), StreamMemory(specs)

    def memory(self, training: Any) -> StreamMemory:
        """Returns the memory of training or evaluation."""
        return self.training if training else self.evaluation

    def call(self, begins: Any, training: Any = None) -> tuple[tf.Tensor, ...]:
        return self.memory(training).read(begins)

    def compute_output_spec(self, begins: Any, training: Any = None) -> tuple:
        held = self.training.held
        return tuple(keras.KerasTensor(v.shape.as_list(), v.dtype.name) for v in held)


class WriteMemory(keras.layers.Layer):
    """Collects the memory for the next batch, and returns another tensor unchanged.

    Args:
        reader: the layer that reads the memory.

    Call:
        inputs: the tensor to return, and the memory of each layer.
    """

    def __init__(self, reader: ReadMemory, **kwargs: Any):
        super().__init__(**kwargs)
        self.reader = reader

    def call(self, inputs: Any, training: Any = None) -> Any:
        x, *memory = inputs
        assignments = self.reader.memory(training).collect(memory)
        with tf.control_dependencies(assignments if not tf.executing_eagerly() else []):
            return tf.identity(x)

    def compute_output_spec(self, inputs: Any, training: Any = None) -> keras.KerasTensor:
        return keras.KerasTensor(inputs[0].shape, inputs[0].dtype)


class StreamLM(Learner):
    """Trains and evaluates a language model on streams, with a memory of previous segments.

    If the backbone has a memory, each batch's memory is an input of the next batch, without a
    gradient. It belongs to this model, not to the backbone, which is used, saved and exported
    without it.

    ``fit`` and ``evaluate`` take batches from ``bertfam_tf.corpora.segments``. The memory is reset
    at the start of a stream, and therefore in each epoch.

    Args:
        backbone: a causal backbone.
        head: computes log-probabilities or logits of the next token, such as
            ``heads.build(backbone, "causal_lm")``.

    Raises:
        ValueError: if the head does not predict the next token, or the backbone is not causal.
    """

    tracker = SingleLossTracker

    def __init__(self, backbone: Backbone, head: Head, **kwargs: Any):
        if head.reads != "sequence_output":
            raise ValueError(
                f"The {head.name} of {backbone.family} does not predict the next token."
            )
        if getattr(backbone.config, "attn_type", "uni") != "uni":
            raise ValueError(
                f"backbone must be causal, got {backbone.family} with attn_type "
                f"{backbone.config.attn_type!r}: its tokens attend to the ones that they predict."
            )
        policy = backbone.dtype_policy  # which may differ from the global one
        reader = ReadMemory(backbone.input.get("memory", ()), name="read_memory", dtype=policy)
        tokens = keras.Input((None,), dtype="int32", name="token_ids")
        begins = keras.Input((), dtype="int32", name="begins")
        inputs = {"token_ids": tokens, "padding_mask": keras.ops.ones_like(tokens)}
        memory = reader(begins) if reader.training.held else ()
        outputs = backbone({**inputs, "memory": memory} if memory else inputs)
        x = outputs["sequence_output"]  # (batch, length, hidden)
        if memory:
            write = WriteMemory(reader, name="write_memory", dtype=policy)
            x = write([x, *outputs["memory"]])
        if not head.built:
            head(backbone.output)
        super().__init__(
            {"token_ids": tokens, "begins": begins},
            {"sequence_output": x},
            [NextTokens(head)],
            **kwargs,
        )
        self.dtype_policy = policy
        self.backbone = backbone
        self.head = head
        self.reader = reader
        # Created once, so that each call of ``perplexity`` does not trace it again.
        self._compiled_score = tf.function(self._score, autograph=False, reduce_retracing=True)

    @property
    def step_variables(self) -> Mapping[str, Any]:
        local = self.distribute_strategy.experimental_local_results
        return {
            f"memory/{layer}/{replica}": variable
            for layer, held in enumerate(self.reader.training.held)
            for replica, variable in enumerate(local(held))
        }

    def train_step(self, data: Any) -> Any:
        return self._with_memory(self.reader.training, super().train_step, data)

    def test_step(self, data: Any) -> Any:
        return self._with_memory(self.reader.evaluation, super().test_step, data)

    @staticmethod
    def _with_memory(memory: StreamMemory, step: Any, data: Any) -> Any:
        memory.discard()
        logs = step(data)
        memory.advance()
        return logs

    def _counts(self, batch: Batch) -> dict[str, Any]:
        # Counts do not need the network, which would collect the memory twice.
        weights = batch.weights
        return {"causal_lm": tf.size(batch.targets) if weights is None else tf.reduce_sum(weights)}

    def fit(self, x: Any = None, **kwargs: Any) -> keras.callbacks.History:
        # The order of the stream must be kept.
        return super().fit(x, **{**kwargs, "shuffle": False})

    def _score(self, data: Any, memory: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Returns the sum of a batch's losses, its number of tokens, and the new memory."""
        inputs, targets, weights = data
        tokens = inputs["token_ids"]
        features = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
        features |= {"memory": memory} if memory else {}
        outputs = self.backbone(features, training=False)
        [objective] = self._objectives.value
        sums = objective.loss(outputs, objective.heads, Batch(inputs, targets, weights))
        return *sums["causal_lm"], outputs["memory"] if memory else ()

    def perplexity(
        self,
        corpora: Mapping[str, np.ndarray],
        *,
        length: int = 128,
        batch_size: int = 1,
        verbose: bool = True,
    ) -> dict[str, float]:
        """Computes the perplexity of corpora, each read as one stream.

        Args:
            corpora: token ids by name, as returned by ``bertfam_tf.corpora.token_stream``.
            length: the number of tokens of a segment.
            batch_size: the number of streams that a corpus is split into, which are read in
                parallel and start without a memory. 1 reads everything in order.
            verbose: whether to show a progress bar.

        Returns:
            The perplexity of each corpus, and ``"all"`` for all tokens if there are several.
        """
        perplexities, sums = {}, np.zeros(2)
        for name, ids in corpora.items():
            if verbose:
                print(name)
            bar = keras.utils.Progbar(
                len(ids) - 1,
                verbose=int(verbose),
                unit_name="token",
                stateful_metrics=["perplexity"],
            )
            memory, corpus_sums = self.reader.evaluation.empty(batch_size), np.zeros(2)
            for batch in segments(ids, batch_size, length):
                loss, count, memory = self._compiled_score(batch, tuple(memory))
                corpus_sums += float(loss), float(count)
                bar.add(int(count), [("perplexity", _perplexity(corpus_sums))])
            perplexities[name] = _perplexity(corpus_sums)
            sums += corpus_sums
        return perplexities if len(corpora) == 1 else {**perplexities, "all": _perplexity(sums)}


def _perplexity(sums: np.ndarray) -> float:
    return float(np.exp(sums[0] / sums[1]))
