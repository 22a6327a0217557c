"""Several tasks on one backbone, trained together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.metrics.table import as_metric
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.tasks import storage
from bertfam_tf.tasks.sampling import batches_per_task
from bertfam_tf.tasks.task import Task
from bertfam_tf.tasks.task_objective import TaskObjective
from bertfam_tf.tasks.task_storage import keras_format
from bertfam_tf.tasks.text_learner import ONE_BATCH, TextLearner, columns, is_packed_batch, renamed
from bertfam_tf.text import Tokenizer
from bertfam_tf.training import replicas
from bertfam_tf.training.learner import Untracked

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class MultiTask(TextLearner):
    """Trains tasks that share a backbone, each step on a batch of one of them (MT-DNN).

    Liu et al. 2019, arXiv 1901.11504, algorithm 1: in each epoch the batches of all tasks are
    taken in random order. The tasks themselves are trained, not copies: ``model["sst2"].predict``
    uses the new weights. ``export`` writes one SavedModel with a signature for each task, in which
    the backbone's weights are stored once::

        backbone = bf.load_backbone("bert-base-uncased")
        tokenizer = bf.load_tokenizer("bert-base-uncased")
        model = bf.MultiTask({
            "sst2": bf.TextClassifier(backbone, tokenizer, labels=["negative", "positive"]),
            "stsb": bf.TextRegressor(backbone, tokenizer, pair=True),
        })
        model.fit({"sst2": (texts, labels), "stsb": ((first, second), scores)}, epochs=3)
        model["sst2"].predict(["a fine film"])

    ``history`` has the losses and metrics of each task under its name: ``sst2_loss``,
    ``val_sst2_accuracy``. Their weighted sum is ``loss``.

    Args:
        tasks: the tasks by name; names have letters, digits and ``_``, and begin with a letter.
        loss_weights: factors of the tasks' losses, by name of the task; 1 for omitted ones.

    Raises:
        ValueError: for fewer than two tasks, an invalid name, a task that cannot be trained, tasks
            with different backbones or tokenizers, or a weight of an unknown task.
    """

    fit_options = ("batch_tokens", "sampling", "seed", "steps")

    def __init__(
        self,
        tasks: Mapping[str, Task],
        *,
        loss_weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        tasks = dict(tasks)
        _check(tasks)
        first = next(iter(tasks.values()))
        self._named = Untracked(tasks)
        for name in loss_weights or {}:
            self._known(name)
        self._metrics_by_task: dict[str, list[keras.metrics.Metric]] = {}
        with first.distribute_strategy.scope():
            # The batches of all tasks but one have no examples.
            inputs = {
                name: {
                    key: keras.Input(x.shape[1:], dtype=x.dtype, name=f"{name}_{key}")
                    for key, x in task.components.inputs.items()
                }
                for name, task in tasks.items()
            }
            super().__init__(
                inputs,
                {name: task(inputs[name]) for name, task in tasks.items()},
                [
                    TaskObjective(name, objective, (loss_weights or {}).get(name, 1.0))
                    for name, task in tasks.items()
                    for objective in task.objectives
                ],
                **{"name": "multi_task", **kwargs},
            )
            self._own_loss = keras.metrics.Mean("loss")
        self.dtype_policy = first.dtype_policy
        self._validated: frozenset[str] = frozenset()

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks by name."""
        return dict(self._named.value)

    def __getitem__(self, name: str) -> Task:
        if name not in self._named.value:
            raise KeyError(unknown("task", name, self._named.value))
        return self._named.value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named.value)

    @property
    def backbone(self) -> Backbone:
        """The backbone of all tasks."""
        return next(iter(self._named.value.values())).backbone

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all tasks."""
        return next(iter(self._named.value.values())).tokenizer

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The trainable variables that at least one task uses."""
        read = {id(v) for task in self._named.value.values() for v in task.trainable_variables}
        return [v for v in super().trainable_variables if id(v) in read]

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return self.trainable_variables

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        if not self.compiled:
            return []
        # Not the metrics of the tasks, which may have been compiled and evaluated alone.
        return [
            self._reported_loss,
            *(metric for metrics in self._metrics_by_task.values() for metric in metrics),
        ]

    def compile(
        self,
        optimizer: Any = None,
        loss: None = None,
        *,
        metrics: Mapping[str, list[Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compiles like ``TextLearner.compile``.

        Args:
            optimizer: None for ``default_optimizer()``.
            loss: None, because each task has its own.
            metrics: the argument of ``Task.compile`` by task, for ``fit`` and ``evaluate``; omitted
                tasks have their default metrics.
            **kwargs: further arguments of ``Learner.compile``.

        Raises:
            ValueError: for metrics of an unknown task; for ``accumulation_steps`` above 1, because
                a batch has examples of one task only; and as ``Learner.compile``.
        """
        chosen = metrics or {}
        for name in chosen:
            self._known(name)
        if kwargs.get("accumulation_steps", 1) > 1:
            raise ValueError("accumulation_steps must be 1 for several tasks.")
        if loss is not None:
            raise ValueError("loss must be None: each task has its own.")
        with self.distribute_strategy.scope():
            self._metrics_by_task = {}
            for name, task in self._named.value.items():
                default = task.components.metrics
                if name in chosen:
                    task.compile(metrics=chosen[name])
                    own = [as_metric(task.metric(metric)) for metric in chosen[name]]
                else:
                    own = [] if default is None else default()
                self._metrics_by_task[name] = own
        super().compile(optimizer, **kwargs)

    def fit(
        self,
        x: Mapping[str, Any] | tf.data.Dataset,
        y: Any = None,
        *,
        sampling: float | Mapping[str, float] = 1.0,
        steps_per_epoch: int | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains like ``TextLearner.fit``, on raw text and labels of all tasks.

        Args:
            x: for each task ``(x, y)`` or ``(x, y, sample_weight)``, the same as for ``Task.fit``,
                or a ``tf.data.Dataset`` or DataFrame with labels alone. Or the data set that
                ``text_batches`` returns.
            y: None. ``validation_data`` has the form of ``x``, for all tasks or some.
            sampling: the exponent of the number of batches to which a task's probability is
                proportional. 1: each batch once per epoch; 0.5: the square root; 0: all tasks
                equally often, so that small data sets are repeated. Or probabilities by task.
            steps_per_epoch: None for the number of batches in the data.
            seed: the random seed of the order of tasks; None for a new order in each call.
            **kwargs: further arguments of ``TextLearner.fit``; each batch has examples of one task.

        Raises:
            ValueError: for unknown tasks or tasks without data, for probabilities that are negative
                or all 0, for a data set of unknown size without probabilities and
                ``steps_per_epoch``, and as ``Task.fit``.
        """
        of_batches: dict[str, Any] = {"sampling": sampling, "seed": seed, "steps": steps_per_epoch}
        return super().fit(x, y, steps_per_epoch=steps_per_epoch, **of_batches, **kwargs)

    def examples(self, *data: Any) -> tuple[Any, Any, Any]:
        raise ValueError("Several tasks take no validation_split or columns; use validation_data.")

    def validation_batches(self, data: Any, batch_size: int, like: Any) -> Any:
        self._validated = frozenset(data)
        spec = like.element_spec
        specs = {name: tuple(part[name] for part in spec if name in part) for name in self}
        streams = self._streams(data, batch_size)
        # Tasks may have weights in one of both alone.
        specs |= {name: stream.element_spec for name, stream in streams.items()}
        parts = self._complete(streams, specs)
        return reduce(tf.data.Dataset.concatenate, parts)

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = 32, **kwargs: Any) -> Any:
        """Evaluates each task; returns the results of ``Task.evaluate`` as dicts, by task.

        Args:
            x: the same as for ``fit``, of all tasks or of some.
            y: None.
            batch_size: examples in a batch.
            **kwargs: further arguments of ``Task.evaluate``.

        Raises:
            ValueError: for a task that is not there, and as ``Task.evaluate`` raises it.
        """
        if x is not None and x is self._validation:
            # Keras' fit() evaluates the data set that our fit() made.
            results = super().evaluate(x, **kwargs)
            others = tuple(f"{name}_" for name in self if name not in self._validated)
            return {key: value for key, value in results.items() if not key.startswith(others)}
        kwargs.pop("return_dict", None)
        scores = {}
        for name, rows in x.items():
            task = self._known(name)
            texts, labels, weights = _columns(rows, task)
            own = {} if weights is None else {"sample_weight": weights}
            scores[name] = task.evaluate(
                texts, labels, batch_size=batch_size, return_dict=True, **own, **kwargs
            )
        return scores

    def predict(self, x: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Returns the answers of each task's ``predict``, by task.

        Args:
            x: texts for all tasks or for some, by name.
            **kwargs: further arguments of ``Task.predict``.

        Raises:
            ValueError: for texts that are not by the names of tasks, and as ``Task.predict``
                raises it.
        """
        if not isinstance(x, Mapping):
            raise ValueError(f"Texts must be in a dict by task ({', '.join(self)}), got {type(x)}.")
        return {name: self._known(name).predict(texts, **kwargs) for name, texts in x.items()}

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the answers of ``predict``; for packed token ids, the Keras model's outputs."""
        if is_packed_batch(x):
            return super().predict_on_batch(x)
        return self.predict(x, batch_size=ONE_BATCH)

    def _one_batch(self, x: Any, *labels: Any, **options: Any) -> tuple[Any, ...]:
        if not is_packed_batch(x):
            raise ValueError("Expected a batch of text_batches(); fit() and evaluate() take text.")
        return super()._one_batch(x, *labels, **options)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        for name, metrics in self._metrics_by_task.items():
            for metric in metrics:
                metric.update_state(y[name], y_pred[name])
        return self.get_metrics_result()

    @property
    def _reported_loss(self) -> keras.metrics.Metric:
        tracker = self._own_loss if self._overrides_loss else self._losses_seen
        assert tracker is not None
        return tracker

    def _compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super()._compute_loss(*args, **kwargs)
        if self._overrides_loss:
            # Keras would weigh it by the number of examples of the first task.
            self._own_loss.update_state(loss)
        return loss

    def get_metrics_result(self) -> dict[str, Any]:
        loss = self._reported_loss.result()
        results = loss if isinstance(loss, dict) else {"loss": loss}
        for name, metrics in self._metrics_by_task.items():
            results |= {f"{name}_{metric.name}": metric.result() for metric in metrics}
        return replicas.reducible(results)

    def count_batch(self, inputs: Any) -> Any:
        return sum(super(MultiTask, self).count_batch(features) for features in inputs.values())

    # Storing ---------------------------------------------------------------------------------

    def served_tasks(self) -> dict[str, Task]:
        """The tasks that an export answers for, by the names of their signatures."""
        return self.tasks

    def describe(self) -> dict[str, Any]:
        """The description that ``save`` and ``export`` store, sufficient to rebuild the tasks."""
        tasks = {name: task.describe() for name, task in self.tasks.items()}
        shared = {**next(iter(tasks.values())), "task": type(self).__name__, "options": {}}
        own = {name: {key: x[key] for key in ("task", "options")} for name, x in tasks.items()}
        return {**shared, "tasks": own}

    def save(self, directory: str | Path, overwrite: bool = True) -> None:
        """Writes all tasks into ``directory``, for ``bertfam_tf.load``; as ``Task.save``.

        Raises:
            FileExistsError, OSError: as ``Task.save`` does.
            ValueError: for the name of a file of Keras.
        """
        if keras_format(directory):
            raise ValueError(
                f"Several tasks are saved as a directory, got the file {directory}. "
                "ModelCheckpoint needs save_weights_only=True."
            )
        storage.save(self, Path(directory), overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, also by way of a pickle, has what ``save`` writes, and is not compiled.
        return storage.unpacked, (storage.packed(self),)

    def export(self, directory: str | Path, version: int | None = None, **kwargs: Any) -> Path:
        """Writes a SavedModel for TF Serving, with a signature for each task, of its name.

        A task's own further signatures, such as ``rank``, follow its name: ``search_rank``. There
        is no ``serving_default``, and none for token ids. Weights are stored once.

        Args:
            directory, version: the same as for ``Task.export``.
            **kwargs: ``dtype``, which is not ``"int8"``, ``batching`` and ``metrics``.

        Raises:
            FileExistsError, ValueError, ExportError: as ``Task.export`` does.
        """
        from bertfam_tf.export import export_saved_model

        return export_saved_model(self, directory, version=version, **kwargs)

    # Training data ---------------------------------------------------------------------------

    batches = renamed("batches", "text_batches")

    def text_batches(
        self,
        x: Mapping[str, Any] | tf.data.Dataset,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        *,
        shuffle: bool = True,
        training: bool = True,
        sampling: float | Mapping[str, float] = 1.0,
        steps: int | None = None,
        seed: int | None = None,
        batch_tokens: int | None = None,
    ) -> tf.data.Dataset:
        """Returns the batches of an epoch, each of one task, as ``fit`` trains on them.

        Args:
            x: the same as for ``fit``; a data set of this method is returned as it is.
            y, sample_weight: None: each task has its own in ``x``.
            batch_size, shuffle, training, batch_tokens: the same as for ``Task.text_batches``.
            sampling, seed: the same as for ``fit``.
            steps: the same as ``steps_per_epoch`` of ``fit``.

        Raises:
            ValueError: as for ``fit``.
        """
        if y is not None or sample_weight is not None:
            raise ValueError(
                "y and sample_weight must be None: x has the labels and weights of each task."
            )
        if isinstance(x, tf.data.Dataset):
            return x.prefetch(2)
        missing = [name for name in self if name not in x]
        if missing:
            raise ValueError(f"The task {missing[0]!r} has no data; tasks: {list(self)}.")
        streams = self._streams(
            x, batch_size, shuffle=shuffle, training=training, batch_tokens=batch_tokens
        )
        sizes = {name: int(stream.cardinality()) for name, stream in streams.items()}
        counts = batches_per_task(sizes, sampling, steps)
        total = sum(counts.values())
        order = np.repeat(np.arange(len(streams)), [counts[name] for name in streams])
        choices = tf.data.Dataset.from_tensor_slices(order.astype("int64")).shuffle(total, seed)
        specs = {name: stream.element_spec for name, stream in streams.items()}
        return (
            tf.data.Dataset.choose_from_datasets(
                [stream.repeat() for stream in self._complete(streams, specs)],
                choices,
                stop_on_empty_dataset=False,
            )
            .apply(tf.data.experimental.assert_cardinality(total))
            .prefetch(2)
        )

    def _known(self, name: str) -> Task:
        if name not in self._named.value:
            raise ValueError(unknown("task", name, self._named.value))
        return self._named.value[name]

    def _streams(
        self, data: Mapping[str, Any], batch_size: int, **options: Any
    ) -> dict[str, tf.data.Dataset]:
        """Batches of token ids of each task, ``(inputs, targets, weights)`` or without weights."""
        streams = {}
        for name, rows in data.items():
            task = self._known(name)
            streams[name] = task.text_batches(*_columns(rows, task), batch_size, **options)
        return streams

    def _complete(
        self, streams: Mapping[str, tf.data.Dataset], specs: Mapping[str, tuple]
    ) -> list[tf.data.Dataset]:
        """Adds empty batches of all other tasks to the elements of each task's stream.

        Args:
            streams: the streams by task.
            specs: element specs of all tasks; results have weights if any spec has them.
        """
        weighted = [name for name, spec in specs.items() if len(spec) == 3]

        def complete(name: str) -> Callable[..., tuple]:
            @tf.autograph.experimental.do_not_convert
            def element(*batch: Any) -> tuple:
                batches: dict[str, Any] = {
                    n: tf.nest.map_structure(_empty, spec) for n, spec in specs.items() if n != name
                }
                batches[name] = batch
                inputs, targets = ({n: batches[n][i] for n in self} for i in (0, 1))
                if not weighted:
                    return inputs, targets
                if name in weighted and len(batch) < 3:
                    rows = tf.shape(tf.nest.flatten(batch)[0])[0]
                    batches[name] = (*batch, tf.ones([rows]))
                return inputs, targets, {n: batches[n][2] for n in weighted}

            return element

        return [stream.map(complete(name)) for name, stream in streams.items()]


def _check(tasks: Mapping[str, Task]) -> None:
    if len(tasks) < 2:
        raise ValueError(f"MultiTask is for two tasks or more, got {list(tasks)}.")
    first_name, first = next(iter(tasks.items()))
    for name, task in tasks.items():
        if not isinstance(task, Task):
            raise ValueError(f"The task {name!r} must be a bertfam_tf task, got {type(task)}.")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"Names of tasks have letters, digits and _ and begin with a letter, got {name!r}."
            )
        if not task.objectives:
            raise ValueError(f"The task {name!r} has no loss: {type(task).__name__}.")
        names = f"The tasks {first_name!r} and {name!r}"
        if task.backbone is not first.backbone:
            raise ValueError(f"{names} have two backbones: make both of the same object.")
        ours, theirs = first.tokenizer, task.tokenizer
        if type(ours) is not type(theirs) or ours.get_config() != theirs.get_config():
            raise ValueError(f"{names} must have the same tokenizer, with the same arguments.")
        for other in tasks:
            # Their losses and metrics would be mistaken for each other's.
            if name.startswith(f"{other}_"):
                raise ValueError(f"The name {name!r} begins with the name of the task {other!r}.")
    if len({id(task) for task in tasks.values()}) < len(tasks):
        raise ValueError("A task has two names.")


def _columns(data: Any, task: Task) -> tuple[Any, Any, Any]:
    """``x``, ``y`` and sample weights of a task's data."""
    if isinstance(data, tuple) and not 1 <= len(data) <= 3:
        raise ValueError(f"A task's data must be (x, y[, sample_weight]), got {len(data)} values.")
    return columns(data, task.fields)


def _empty(spec: Any) -> Any:
    """A batch without examples."""
    # Keras would add tensors of the sizes 0 and 1 as biases: so 2, and graphs do not know the 0.
    nothing = tf.zeros([0, *(2 if size is None else size for size in spec.shape[1:])], spec.dtype)
    return tf.raw_ops.PlaceholderWithDefault(input=nothing, shape=spec.shape)
