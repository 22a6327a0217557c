"""Trains embedders with contrastive, similarity and distillation losses."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import keras
import tensorflow as tf
from keras import ops

from bertfam_tf.data.inputs import TEXT, TEXT_PAIR, Fields, batches
from bertfam_tf.data.labels import numbers_of, within
from bertfam_tf.names import unknown
from bertfam_tf.objectives.objective import Batch, SumAndCount
from bertfam_tf.tasks.components import NO_LABELS, one_per_example
from bertfam_tf.tasks.languages import repeated
from bertfam_tf.tasks.preprocessing import SingleRow, rows_of
from bertfam_tf.tasks.text_learner import TextLearner, is_packed_batch, renamed
from bertfam_tf.training import accumulation
from bertfam_tf.training.learner import Untracked, mean_loss
from bertfam_tf.validation import check, in_range, setting

if TYPE_CHECKING:
    from bertfam_tf.tasks.text_embedder import TextEmbedder

_NEGATIVES = "negatives"
_FIELDS = {
    "contrastive": Fields((TEXT, TEXT_PAIR), (_NEGATIVES,)),
    "embedding_mse": Fields((TEXT,), ()),
}
_PAIRS = Fields((TEXT, TEXT_PAIR), ())  # of all other objectives

Similarity = Literal["contrastive", "supervised_contrastive", "cosent", "cosine", "embedding_mse"]


class EmbedderTrainer(TextLearner):
    """Trains a ``TextEmbedder`` with ``fit``, on positive pairs, scored pairs or embeddings.

    An example is a ``text`` and a ``text_pair``, as a dict, a tuple in that order or a DataFrame.
    The objectives are:

    * ``"contrastive"``: a positive pair, such as a question and its answer, and optionally
      ``negatives``, one or more strings, the same number in each example. The loss is the
      cross-entropy of the pair's second text among the second texts of the batch and all negatives
      (InfoNCE with in-batch negatives; arXiv 1705.00652). Texts that are equal to the positive are
      not used as negatives.
    * ``"supervised_contrastive"``: two texts of one class, whose number is the label. The loss is
      the cross-entropy of each text's class among all other texts of the batch (SupCon, arXiv
      2004.11362, equation 2).
    * ``"cosent"``: the labels are similarities. The loss compares all pairs of examples in a batch:
      a higher label requires a higher cosine similarity (CoSENT, Su 2022).
    * ``"cosine"``: the squared error of the cosine similarity, for labels from -1 to 1 (arXiv
      1908.10084).
    * ``"embedding_mse"``: an example is a ``text``, whose label is a teacher's embedding of it; the
      loss is the mean squared error of the vectors (distillation, arXiv 2004.09813). Its former
      name ``"teacher"`` warns.

    The embedder itself is trained, not a copy. Under a strategy with several replicas, each replica
    has its own in-batch negatives.

    Args:
        embedder: the embedder to train.
        objective: as above.
        temperature: divides cosine similarities in ``"contrastive"``,
            ``"supervised_contrastive"`` and ``"cosent"``.
        symmetric: whether ``"contrastive"`` is the mean of both directions: second text given the
            first, and first given the second.
        dimensions: sizes to which vectors are truncated; the losses of all sizes are added up
            (Matryoshka representations, arXiv 2205.13147). None for the full size only.
        prompts: names of the embedder's prompts for ``text`` and for the other texts, such as
            ``("query", "passage")``; None for its default prompt.
        mini_batch_size: number of texts per forward pass, for batches that do not fit in memory
            (GradCache, arXiv 2101.06983); every text is then computed twice. None for the whole
            batch.
        rows_in_memory: the former name of ``mini_batch_size``, which warns.

    Raises:
        ValueError: for an unknown objective or prompt, another number of prompts, a temperature
            that is not positive, or dimensions that the vectors do not have.
    """

    # In-batch negatives of the same length would share a cue that real ones lack.
    batches_by_length = False

    @dataclass(frozen=True)
    class Settings:
        """The section ``trainer`` of recipes: the arguments of ``EmbedderTrainer``.

        Attributes:
            objective: ``contrastive``, for pairs of texts that belong together, without labels and
                optionally with a column, or several, of ``negatives``; ``cosent`` or ``cosine``,
                for pairs with their similarity as the label.
            temperature, symmetric, dimensions, prompts, mini_batch_size: as ``EmbedderTrainer``
                takes them.
            rows_in_memory: the former name of ``mini_batch_size``.
        """

        objective: str = setting("contrastive", choices=("contrastive", "cosent", "cosine"))
        temperature: float = setting(0.05, above=0)
        symmetric: bool = False
        dimensions: list[int] | None = None
        prompts: list[str | None] | None = None
        mini_batch_size: int | None = setting(None, at_least=1)
        rows_in_memory: int | None = None

        def __post_init__(self) -> None:
            size = _renamed_size(self.mini_batch_size, self.rows_in_memory)
            object.__setattr__(self, "mini_batch_size", size)
            object.__setattr__(self, "rows_in_memory", None)
            check(self, "trainer")

    def __init__(
        self,
        embedder: TextEmbedder,
        objective: Similarity = "contrastive",
        *,
        temperature: float = 0.05,
        symmetric: bool = False,
        dimensions: Sequence[int] | None = None,
        prompts: tuple[str | None, str | None] | None = None,
        mini_batch_size: int | None = None,
        rows_in_memory: int | None = None,
        **kwargs: Any,
    ):
        mini_batch_size = _renamed_size(mini_batch_size, rows_in_memory)
        if str(objective) == "teacher":
            objective = "embedding_mse"
            warnings.warn(
                "The objective 'teacher' is called 'embedding_mse'; the old name is for version "
                "0.1 only.",
                FutureWarning,
                stacklevel=2,
            )
        if objective not in get_args(Similarity):
            raise ValueError(unknown("objective", objective, get_args(Similarity)))
        if prompts is not None and len(prompts) != 2:
            raise ValueError(f"prompts must be two names, got {prompts}.")
        in_range("temperature", temperature, above=0)
        if mini_batch_size is not None:
            in_range("mini_batch_size", mini_batch_size, at_least=1, integer=True)
        width = embedder.output_shape[-1]
        widths = [width] if dimensions is None else list(dimensions)
        if not widths or not all(1 <= size <= width for size in widths):
            raise ValueError(f"dimensions must be from 1 to {width}, got {dimensions}.")
        self._embedder = Untracked(embedder)
        with embedder.distribute_strategy.scope():
            inputs, vectors = rows_of(embedder.components.inputs, embedder)  # (batch, texts, width)
            loss = _Similarity(objective, temperature, symmetric, widths, width)
            super().__init__(inputs, vectors, [loss], **{"name": "embedder_trainer", **kwargs})
        self.dtype_policy = embedder.dtype_policy
        self._objective = loss
        self._texts = _Texts(embedder, prompts)
        self._mini_batch_size = mini_batch_size
        fields = _FIELDS.get(objective, _PAIRS)
        self.fields = fields._replace(described=embedder.fields.described, labelled=loss.has_labels)

    @property
    def embedder(self) -> TextEmbedder:
        """The embedder that is trained."""
        return self._embedder.value

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The embedder's trainable variables that its vectors depend on."""
        trainable = {id(v) for v in self._embedder.value.trainable_variables}
        return [v for v in super().trainable_variables if id(v) in trainable]

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return self.trainable_variables

    def compile(self, optimizer: Any = None, loss: Any = None, **kwargs: Any) -> None:
        """Compiles like ``TextLearner.compile``.

        Raises:
            ValueError: as ``Learner.compile``; for ``accumulation_steps`` above 1, because
                micro-batches would have fewer negatives; use ``mini_batch_size`` instead; and for
                ``mini_batch_size`` with ``jit_compile``.
        """
        if kwargs.get("accumulation_steps", 1) > 1:
            raise ValueError(
                "accumulation_steps must be 1: micro-batches would have fewer negatives. Use "
                "mini_batch_size to limit the memory of a step."
            )
        if kwargs.get("jit_compile") and self._mini_batch_size is not None:
            raise ValueError("mini_batch_size must be None with jit_compile, got "
                             f"{self._mini_batch_size}.")  # fmt: skip
        super().compile(optimizer, loss, **kwargs)

    batches = renamed("batches", "text_batches")

    def text_batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        training: bool = False,
    ) -> tf.data.Dataset:
        """Batches of texts as the Keras model takes them: inputs, targets, weights.

        Args:
            x: texts, as the class describes them.
            y: similarities (examples,), or a teacher's vectors (examples, width).
            sample_weight, batch_size, shuffle, training: the same as for
                ``TextLearner.text_batches``.

        Raises:
            ValueError: for data of another structure, missing or unexpected labels, or labels that
                are not finite, outside of -1 to 1 for ``"cosine"``, or of another width than the
                embedder's.
        """
        x, y, sample_weight = self.examples(x, y, sample_weight)
        stream = batches(x, y, sample_weight, batch_size=batch_size, fields=self.fields)
        if shuffle and not isinstance(x, tf.data.Dataset):
            # At random, not by length: see batches_by_length.
            steps = int(stream.cardinality())
            count = tf.data.experimental.assert_cardinality(steps)
            stream = stream.unbatch().shuffle(steps * batch_size).batch(batch_size).apply(count)
        labelled = len(stream.element_spec) > 1
        if labelled != self._objective.has_labels:
            wants = "no labels" if labelled else "labels"
            problem = f"The objective {self._objective.kind!r} takes {wants}."
            raise ValueError(problem if labelled else f"{NO_LABELS} {problem}")

        @tf.autograph.experimental.do_not_convert
        def encode(features: Any, labels: Any = None, *weights: Any) -> tuple:
            inputs = self._texts(features)
            if labels is None:
                return (inputs,)
            return inputs, self._objective.targets(labels), *map(one_per_example, weights)

        return stream.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the vectors of packed token ids, float (batch, texts, width).

        Raises:
            ValueError: for raw text, which ``embedder.predict`` takes.
        """
        if not is_packed_batch(x):
            raise ValueError(
                "Expected packed token ids by name, of text_batches(); for the vectors of raw "
                f"text call embedder.predict(), and fit() to train, got {type(x).__name__}."
            )
        return super().predict_on_batch(x)

    def train_step(self, *args: Any) -> Any:
        # The arguments depend on the Keras backend; mini-batches need TensorFlow.
        if self._mini_batch_size is None:
            return super().train_step(*args)
        return self._cached_step(*args)

    def _cached_step(self, data: Any) -> Any:
        """Runs a step that keeps the activations of ``mini_batch_size`` texts only (GradCache)."""
        batch = Batch(*keras.utils.unpack_x_y_sample_weight(data))
        shape = tf.shape(batch.inputs["padding_mask"])
        rows = {n: tf.reshape(x, [-1, 1, shape[2], *x.shape[3:]]) for n, x in batch.inputs.items()}
        size = self._mini_batch_size
        assert size is not None
        number = -(-shape[0] * shape[1] // size)
        width, dtype = self.output_shape[-1], self.outputs[0].dtype

        def part(values: Any, index: Any) -> Any:
            return keras.tree.map_structure(lambda x: x[index * size : (index + 1) * size], values)

        # The second pass restores these seeds and the order, so dropout masks are the same.
        seeds = [v for v in self.variables if v.path.endswith("seed_generator_state")]
        before = [tf.identity(v.value) for v in seeds]

        def compute(index: Any, done: Any) -> Any:
            return index + 1, done.write(index, self(part(rows, index), training=True)[:, 0])

        vectors = tf.TensorArray(dtype, number, infer_shape=False, element_shape=[None, width])
        _, vectors = tf.while_loop(
            lambda index, _: index < number, compute, (0, vectors), parallel_iterations=1
        )
        outputs = tf.ensure_shape(vectors.concat(), [None, width])
        outputs = tf.stop_gradient(tf.reshape(outputs, [shape[0], shape[1], width]))
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = self.compute_loss(batch.inputs, batch.targets, outputs, batch.weights)
            scaled = self.optimizer.scale_loss(loss)
        # Keras reports it where the loss is not the objective's; over replicas it is a mean.
        replicas = self.distribute_strategy.num_replicas_in_sync
        self._loss_tracker.update_state(loss * replicas, sample_weight=shape[0])
        gradient = tf.reshape(tape.gradient(scaled, outputs), [-1, width])
        with tf.control_dependencies([outputs]):
            for variable, value in zip(seeds, before, strict=True):
                variable.assign(value)

        def surrogate(index: Any) -> Any:
            vectors = self(part(rows, index), training=True)[:, 0]
            return tf.reduce_sum(vectors * part(gradient, index))

        weights = self.trainable_weights
        gradients = accumulation.summed_gradients(surrogate, weights, number)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return self.compute_metrics(batch.inputs, batch.targets, outputs, batch.weights)


def _renamed_size(mini_batch_size: int | None, rows_in_memory: int | None) -> int | None:
    if rows_in_memory is None:
        return mini_batch_size
    warnings.warn(
        "rows_in_memory is called mini_batch_size; the old name is for version 0.1 only.",
        FutureWarning,
        stacklevel=3,
    )
    return rows_in_memory


class _Texts:
    """Packs the texts of examples, int32 (batch, texts, longest).

    Args:
        embedder: the model that reads the texts.
        prompts: names of the prompts of the first text and of the others.
    """

    def __init__(self, embedder: TextEmbedder, prompts: tuple[str | None, str | None] | None):
        known = embedder.prompts
        names = prompts or (embedder.default_prompt,) * 2
        for name in names:
            if name is not None and name not in known:
                raise ValueError(unknown("prompt", name, known))
        plain = embedder.components.preprocessor
        assert isinstance(plain, SingleRow)
        self._packers = [plain.with_prompt("" if name is None else known[name]) for name in names]

    def __call__(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        values = [features[n] for n in (TEXT, TEXT_PAIR, _NEGATIVES) if n in features]
        columns = [x if x.shape.rank == 2 else tf.expand_dims(x, 1) for x in values]
        first, others = self._packers
        prompted = [
            tf.strings.join([(others if i else first).prompt, x]) for i, x in enumerate(columns)
        ]
        texts = tf.concat(prompted, axis=1)  # (batch, texts)
        batch, count = tf.unstack(tf.shape(texts))
        in_prompt = tf.concat(
            [[first.prompt_tokens], tf.fill([count - 1], others.prompt_tokens)], axis=0
        )
        packed = first.packed(
            [tf.reshape(texts, [-1])],
            tf.expand_dims(tf.tile(in_prompt, [batch]), 1),
            repeated(first.languages.of(features), count),
        )
        inputs = first.inputs(packed)
        shape = [batch, texts.shape[1] or count, tf.shape(packed["padding_mask"])[1]]
        return {name: tf.reshape(x, [*shape, *x.shape[2:]]) for name, x in inputs.items()}


class _Similarity:
    """The objective on vectors (batch, texts, width).

    Args:
        kind: the name of the objective.
        temperature, symmetric: the same as for ``EmbedderTrainer``.
        widths: the sizes to which vectors are truncated.
        width: the size of the vectors.
    """

    weights: Mapping[str, float] = {"loss": 1.0}

    def __init__(
        self, kind: Similarity, temperature: float, symmetric: bool, widths: list[int], width: int
    ):
        self.heads: Mapping[str, keras.layers.Layer] = {}
        self.kind = kind
        self.temperature = temperature
        self.symmetric = symmetric
        self.widths = widths
        self.width = width

    @property
    def has_labels(self) -> bool:
        return self.kind != "contrastive"

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """Labels of a batch as float32, in the graph."""
        rank = 2 if self.kind == "embedding_mse" else 1
        if labels.shape.rank != rank:
            expected = "(examples, width)" if rank == 2 else "(examples,)"
            raise ValueError(f"labels must have the shape {expected}, got {labels.shape}.")
        if rank == 2 and labels.shape[1] not in (None, self.width):
            raise ValueError(
                f"labels must be vectors of the embedder's width, {self.width}, got "
                f"{labels.shape[1]}. A projection gives an embedder its teacher's width: "
                f'projections=[{{"width": {labels.shape[1]}, "activation": None}}].'
            )
        if rank == 2:
            return tf.cast(labels, tf.float32)
        numbers = numbers_of(labels, "label")
        return within(numbers, -1, 1, "objective 'cosine'") if self.kind == "cosine" else numbers

    def loss(self, outputs: Any, heads: Any, batch: Batch) -> dict[str, SumAndCount]:
        vectors = ops.cast(outputs, "float32")
        parts = []
        for width in self.widths:
            x = vectors[..., :width]
            if self.kind == "embedding_mse":
                error = ops.square(x[:, 0] - batch.targets[:, :width])
                parts.append(mean_loss(ops.mean(error, axis=-1), batch.weights))
                continue
            x = ops.normalize(x, axis=-1)
            if self.kind == "contrastive":
                parts.append(self._contrastive(x, batch))
                continue
            if self.kind == "supervised_contrastive":
                parts.append(self._of_classes(x, batch))
                continue
            cosines = ops.sum(x[:, 0] * x[:, 1], axis=-1)  # (batch,)
            if self.kind == "cosine":
                parts.append(mean_loss(ops.square(cosines - batch.targets), batch.weights))
            else:
                parts.append(self._cosent(cosines, batch))
        # Each has the same count.
        return {"loss": (sum(total for total, _ in parts), parts[0][1])}

    def _contrastive(self, x: Any, batch: Batch) -> SumAndCount:
        count = ops.shape(x)[0]
        ids = batch.inputs["token_ids"]
        ids = ops.reshape(ids, (*ops.shape(ids)[:2], -1))
        # The second texts, then the negatives.
        candidates, candidate_ids = (
            ops.concatenate([y[:, 1], ops.reshape(y[:, 2:], (-1, ops.shape(y)[-1]))], axis=0)
            for y in (x, ids)
        )
        scores = ops.matmul(x[:, 0], ops.transpose(candidates)) / self.temperature
        equal = _equal_to_own(ids[:, 1], candidate_ids)  # (batch, candidates)
        scores = ops.where(equal, -1e9, scores)
        right = ops.arange(count)
        losses = ops.sparse_categorical_crossentropy(right, scores, from_logits=True)
        if self.symmetric:
            backward = ops.transpose(scores[:, :count])
            backward = ops.where(_equal_to_own(ids[:, 0], ids[:, 0]), -1e9, backward)
            losses += ops.sparse_categorical_crossentropy(right, backward, from_logits=True)
            losses /= 2
        return mean_loss(losses, batch.weights)

    def _of_classes(self, x: Any, batch: Batch) -> SumAndCount:
        texts = ops.reshape(x, (-1, x.shape[-1]))  # (2 batch, width)
        classes = ops.repeat(batch.targets, 2)
        itself = ops.eye(ops.shape(texts)[0], dtype="bool")
        scores = ops.matmul(texts, ops.transpose(texts)) / self.temperature
        log_chances = ops.log_softmax(ops.where(itself, -1e9, scores), axis=-1)
        same = ops.logical_and(classes[:, None] == classes[None, :], ops.logical_not(itself))
        same = ops.cast(same, "float32")
        losses = -ops.sum(same * log_chances, axis=-1) / ops.sum(same, axis=-1)
        return mean_loss(losses, None if batch.weights is None else ops.repeat(batch.weights, 2))

    def _cosent(self, cosines: Any, batch: Batch) -> SumAndCount:
        targets, weights = batch.targets, batch.weights
        # For each pair of examples: by how much the wrong one has the larger cosine.
        differences = (cosines[:, None] - cosines[None, :]) / self.temperature
        wrong = ops.where(targets[:, None] < targets[None, :], differences, -1e9)
        if weights is not None:  # as if each example were repeated as often
            wrong += ops.log(weights[:, None] * weights[None, :])
        flat = ops.concatenate([ops.zeros((1,)), ops.reshape(wrong, (-1,))])
        return ops.logsumexp(flat), ops.ones(())


def _equal_to_own(own: Any, candidates: Any) -> Any:
    """Bool (batch, candidates): whether a candidate is equal to an example's own text.

    Args:
        own: token ids (batch, length).
        candidates: token ids (candidates, length), of which the first ``batch`` are the examples'
            own, which do not count.
    """
    equal = ops.all(own[:, None] == candidates[None], axis=-1)
    itself = ops.arange(ops.shape(own)[0])[:, None] == ops.arange(ops.shape(candidates)[0])
    return ops.logical_and(equal, ops.logical_not(itself))
