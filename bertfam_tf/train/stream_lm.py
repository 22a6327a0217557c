"""Trains language models on long streams, segment by segment (Transformer-XL, arXiv 1901.02860)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.token_streams import segments
from bertfam_tf.heads import Head
from bertfam_tf.learner import Batch, Learner, SingleLossTracker
from bertfam_tf.models import Backbone
from bertfam_tf.objectives import NextTokens


class ReadMemory(keras.layers.Layer):
    """Returns the memory of the previous batch, empty where a stream begins.

    Args:
        memory: symbolic inputs of the backbone, (batch, memory length, hidden) for each layer.

    Call:
        begins: int32 (batch,), 1 where a stream begins.

    Returns:
        one tensor per layer.
    """

    def __init__(self, memory: Any, **kwargs: Any):
        super().__init__(**kwargs)
        # Each replica of a strategy has its own examples, and therefore its own memory.
        self.held = [
            tf.Variable(
                tf.zeros([0, 0, spec.shape[-1]], spec.dtype),
                shape=spec.shape,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for spec in memory
        ]

    def empty(self, batch: Any) -> tuple[tf.Tensor, ...]:
        """An empty memory."""
        return tuple(tf.zeros([batch, 0, v.shape[-1]], v.dtype) for v in self.held)

    def call(self, begins: Any) -> tuple[tf.Tensor, ...]:
        fresh = tf.reduce_all(begins > 0)
        empty = self.empty(tf.shape(begins)[0])
        return tuple(
            tf.cond(fresh, lambda x=x: x, variable.read_value)
            for x, variable in zip(empty, self.held, strict=True)
        )

    def compute_output_spec(self, begins: Any) -> tuple[keras.KerasTensor, ...]:
        return tuple(keras.KerasTensor(v.shape.as_list(), v.dtype.name) for v in self.held)


class WriteMemory(keras.layers.Layer):
    """Stores the memory for the next batch, and returns another tensor unchanged.

    Args:
        reader: the layer that reads the memory.

    Call:
        inputs: the tensor to return, and the memory of each layer.
    """

    def __init__(self, reader: ReadMemory, **kwargs: Any):
        super().__init__(**kwargs)
        self.reader = reader

    def call(self, inputs: Any) -> Any:
        x, *memory = inputs
        kept = [v.assign(m) for v, m in zip(self.reader.held, memory, strict=True)]
        with tf.control_dependencies(kept if not tf.executing_eagerly() else []):
            return tf.identity(x)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        return keras.KerasTensor(inputs[0].shape, inputs[0].dtype)


class StreamLM(Learner):
    """Trains and evaluates a language model on streams, with a memory of previous segments.

    If the backbone has a memory, that of each batch is an input for the next batch, without a
    gradient. It is part of this model, not of the backbone, which can be used, saved and exported
    as before.

    Args:
        backbone: a causal backbone.
        head: computes log-probabilities or logits of the next token, such as
            ``heads.build(backbone, "causal_lm")``.

    ``fit`` and ``evaluate`` take batches from ``bertfam_tf.data.segments``. The memory is reset at
    the beginning of a stream, and therefore in each epoch.

    Raises:
        ValueError: for a head that does not predict the next token.
    """

    tracker = SingleLossTracker

    def __init__(self, backbone: Backbone, head: Head, **kwargs: Any):
        if head.reads != "sequence_output":
            raise ValueError(
                f"The {head.name} of {backbone.family} does not predict the next token."
            )
        reader = ReadMemory(backbone.input.get("memory", ()), name="read_memory")
        tokens = keras.Input((None,), dtype="int32", name="token_ids")
        begins = keras.Input((), dtype="int32", name="begins")
        given = {"token_ids": tokens, "padding_mask": keras.ops.ones_like(tokens)}
        memory = reader(begins) if reader.held else ()
        outputs = backbone({**given, "memory": memory} if memory else given)
        x = outputs["sequence_output"]  # (batch, length, hidden)
        if memory:
            x = WriteMemory(reader, name="write_memory")([x, *outputs["memory"]])
        if not head.built:
            head(backbone.output)
        super().__init__(
            {"token_ids": tokens, "begins": begins},
            {"sequence_output": x},
            [NextTokens(head)],
            **kwargs,
        )
        self.backbone = backbone
        self.head = head
        self.reader = reader
        # Created once, so that perplexity does not trace it again each time.
        self._compiled_score = tf.function(self._score, autograph=False, reduce_retracing=True)

    def compile(self, *args: Any, accumulation_steps: int = 1, **kwargs: Any) -> None:
        if accumulation_steps > 1 and self.reader.held:
            raise ValueError(
                "accumulation_steps must be 1 for a model with a memory, which belongs to the rows "
                f"of a whole batch, got {accumulation_steps}."
            )
        super().compile(*args, accumulation_steps=accumulation_steps, **kwargs)

    def fit(self, x: Any = None, **kwargs: Any) -> keras.callbacks.History:
        # The order of the stream must be kept.
        return super().fit(x, shuffle=False, **kwargs)

    def _score(self, data: Any, memory: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """The sum of a batch's losses, its number of tokens, and the new memory."""
        inputs, targets, weights = data
        tokens = inputs["token_ids"]
        given = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
        given |= {"memory": memory} if memory else {}
        outputs = self.backbone(given, training=False)
        [objective] = self._objectives.value
        found = objective.loss(outputs, objective.heads, Batch(inputs, targets, weights))
        return *found["causal_lm"], outputs["memory"] if memory else ()

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
            corpora: name -> token ids, as returned by ``bertfam_tf.data.token_stream``.
            length: number of tokens of a segment.
            batch_size: number of parts into which a corpus is split; they are read in parallel and
                begin without a memory. 1 reads everything in order.
            verbose: whether to show a progress bar.

        Returns:
            A number for each corpus, and ``"all"`` for all tokens if there are several.
        """
        found, sums = {}, np.zeros(2)
        for name, ids in corpora.items():
            if verbose:
                print(name)
            bar = keras.utils.Progbar(
                len(ids) - 1,
                verbose=int(verbose),
                unit_name="token",
                stateful_metrics=["perplexity"],
            )
            memory, here = self.reader.empty(batch_size), np.zeros(2)
            for batch in segments(ids, batch_size, length):
                loss, count, memory = self._compiled_score(batch, tuple(memory))
                here += float(loss), float(count)
                bar.add(int(count), [("perplexity", float(np.exp(here[0] / here[1])))])
            found[name] = float(np.exp(here[0] / here[1]))
            sums += here
        return found if len(found) == 1 else {**found, "all": float(np.exp(sums[0] / sums[1]))}
