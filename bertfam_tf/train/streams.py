"""Language models on long streams, segment by segment (Transformer-XL, arXiv 1901.02860)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import replicas
from bertfam_tf.data.streams import segments
from bertfam_tf.heads import Head
from bertfam_tf.models import Backbone


class StreamLM(keras.Model):
    """Trains and evaluates a language model on streams, with a memory of what came before.

    The memory of each batch, where the backbone has one, is an input of the next; no gradient
    flows back into it. It belongs to this model, and not to the backbone, whose weights are all
    that is trained: the backbone is used, saved and exported as before.

    Args:
        backbone: reads from left to right.
        head: gives log-probabilities or logits of the next token, as
            ``heads.build(backbone, "causal_lm")`` does.

    ``fit`` and ``evaluate`` take batches from ``bertfam_tf.data.segments``. The memory begins anew
    where a stream does, so in each epoch.

    Raises:
        ValueError: for a head that does not say what follows each token.
    """

    def __init__(self, backbone: Backbone, head: Head, **kwargs: Any):
        super().__init__(**kwargs)
        if head.reads != "sequence_output":
            raise ValueError(f"The {head.name} of {backbone.family} does not say what follows.")
        self.backbone = backbone
        self.head = head
        self.loss_mean = keras.metrics.Mean(name="loss")
        # Each replica of a strategy has rows of its own, and so a memory.
        self._memory = [
            tf.Variable(
                tf.zeros([0, 0, spec.shape[-1]], spec.dtype),
                shape=spec.shape,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for spec in backbone.input.get("memory", ())
        ]
        if not head.built:
            head(backbone.output)
        # Made once: perplexity would trace it anew each time.
        self._compiled_score = tf.function(self._score, autograph=False, reduce_retracing=True)
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.loss_mean]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        # The optimizer's variables are made where the weights were: `compile` and `fit` may be
        # called outside of the strategy's scope.
        with self.distribute_strategy.scope():
            replicas.check_optimizer(args[0] if args else kwargs.get("optimizer"))
            super().compile(*args, **kwargs)

    def log_probabilities(
        self, inputs: Mapping[str, tf.Tensor], targets: tf.Tensor, memory: Any = None, **kwargs: Any
    ) -> tuple[tf.Tensor, Any]:
        """Of each target, float32 (batch, length); and the memory for the batch that follows.

        Args:
            inputs, targets: of ``bertfam_tf.data.segments``.
            memory: of the batch before; None for the one that this model holds.
            **kwargs: of the backbone's and the head's call.
        """
        tokens = inputs["token_ids"]
        begins = tf.reduce_all(inputs["begins"] > 0)
        empty = self._empty_memory(tf.shape(tokens)[0])
        held = [v.read_value for v in self._memory]
        if memory is not None:
            held = [lambda x=x: x for x in memory]
        memory = tuple(
            tf.cond(begins, lambda e=e: e, before) for e, before in zip(empty, held, strict=True)
        )
        given = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
        given |= {"memory": memory} if memory else {}
        outputs = self.backbone(given, **kwargs)
        found = self.head(outputs, targets=targets, **kwargs)
        return tf.cast(found, tf.float32), outputs["memory"] if memory else ()

    def _empty_memory(self, rows: Any) -> list[tf.Tensor]:
        return [tf.zeros([rows, 0, v.shape[-1]], v.dtype) for v in self._memory]

    def _loss(self, data: Any, training: bool) -> tuple[tf.Tensor, ...]:
        """What is differentiated, the mean loss of a token, the memory, and the tokens' number.

        Replicas add their gradients, so that each divides by the tokens of all.
        """
        inputs, targets, weights = data
        found, memory = self.log_probabilities(inputs, targets, training=training)
        own = -tf.reduce_sum(found * weights)
        total, count = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, [own, tf.reduce_sum(weights)]
        )
        tokens = tf.maximum(count, 1.0)
        return own / tokens, total / tokens, memory, count

    def _score(self, data: Any, memory: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """The sum of a batch's losses, the number of its tokens, and the memory that follows."""
        inputs, targets, weights = data
        found, memory = self.log_probabilities(inputs, targets, memory, training=False)
        return -tf.reduce_sum(found * weights), tf.reduce_sum(weights), memory

    def _remember(self, memory: Any) -> None:
        for variable, value in zip(self._memory, memory, strict=True):
            variable.assign(value)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        replicas.build(self, iterator, data_batch)

    def fit(self, x: Any = None, **kwargs: Any) -> keras.callbacks.History:
        # The order of the stream is the point of it.
        return super().fit(x, shuffle=False, **kwargs)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            own, *told = self._loss(data, training=True)
            scaled = self.optimizer.scale_loss(own)
        variables = self.trainable_variables
        gradients = tape.gradient(scaled, [variable.value for variable in variables])
        self.optimizer.apply(gradients, variables)
        return self._told(*told)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        return self._told(*self._loss(data, training=False)[1:])

    def _told(self, loss: tf.Tensor, memory: Any, count: tf.Tensor) -> dict[str, tf.Tensor]:
        self._remember(memory)
        self.loss_mean.update_state(loss, sample_weight=count)
        mean = self.loss_mean.result()
        return {"loss": mean, "perplexity": tf.exp(mean)}

    def perplexity(
        self,
        corpora: Mapping[str, np.ndarray],
        *,
        length: int = 128,
        batch_size: int = 1,
        verbose: bool = True,
    ) -> dict[str, float]:
        """exp of the mean loss of a token of each corpus, each read as one stream.

        Args:
            corpora: name -> token ids, as ``bertfam_tf.data.token_stream`` gives them.
            length: tokens of a segment, which are computed at once.
            batch_size: parts that a corpus is cut into, read side by side. Each begins without a
                memory; 1 reads everything in order.
            verbose: whether a progress bar is shown.

        Returns:
            A number for each corpus, and ``"all"`` of all tokens together where there are several.
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
            memory, here = self._empty_memory(batch_size), np.zeros(2)
            for batch in segments(ids, batch_size, length):
                loss, count, memory = self._compiled_score(batch, tuple(memory))
                here += float(loss), float(count)
                bar.add(int(count), [("perplexity", float(np.exp(here[0] / here[1])))])
            found[name] = float(np.exp(here[0] / here[1]))
            sums += here
        return found if len(found) == 1 else {**found, "all": float(np.exp(sums[0] / sums[1]))}
