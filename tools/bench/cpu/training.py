"""Who trains: fine-tuning steps and steps of a masked language model, on the same batches.

Optimizers are AdamW with gradients clipped to a norm of 1 and a linear schedule; dropout is on, as
the checkpoint has it. The first step of a call is not counted: pipelines start in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.cpu import workloads
from tools.bench.cpu.turns import Clock, pin
from tools.bench.cpu.workloads import CLASSIFY
from tools.bench.machine import forget_peak, memory

RATE, SCHEDULE, ROWS = 2e-5, 100_000, 32
MASKED, MASK_ID, IGNORED = 0.15, 103, -100
# Rows of a step, and tokens of a row: of book and encyclopedia text as it is cut for BERT.
MLM_ROWS, MLM_LENGTH = 16, 128

Texts = list[tuple[str, str]]
Masked = dict[str, np.ndarray]


def batches(steps: int, grouped: bool) -> list[Texts]:
    """Sentences and labels of SST-2's train set, in batches.

    Args:
        steps: number of batches.
        grouped: whether sentences of similar length share a batch; the order is random then too.
    """
    rows = workloads.train_sentences(steps * ROWS)
    if grouped:
        rows = sorted(rows, key=lambda row: len(row[0]))
    found = [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]
    order = np.random.default_rng(0).permutation(len(found)) if grouped else range(len(found))
    return [found[i] for i in order]


def masked_batches(checkpoint: Path, steps: int, mixed: bool) -> list[Masked]:
    """Batches for a masked language model, made of the contexts of ``workloads.mix``.

    Args:
        checkpoint: whose tokenizer is used.
        steps: number of batches.
        mixed: whether rows are the texts of the mix, truncated to ``MLM_LENGTH`` tokens, or that
            many tokens each.

    Returns:
        dicts of ``ids`` and ``mask``, int32 (rows, length), and ``labels``, int32 (rows, length):
        the id where a token is to be predicted, elsewhere ``IGNORED``.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(workloads.LENGTH)
    rows = [each.ids for each in tokenizer.encode_batch(workloads.mix(one_in=2).rows)]
    if mixed:
        # As many rows as have about the tokens of the other batches.
        rows = [row[:MLM_LENGTH] for row in rows]
        size = round(MLM_ROWS * MLM_LENGTH / np.mean([len(row) for row in rows]))
    else:
        stream = np.array([token for row in rows for token in row])
        size = MLM_ROWS
        rows = list(stream[: len(stream) // MLM_LENGTH * MLM_LENGTH].reshape(-1, MLM_LENGTH))
    draw = np.random.default_rng(0)
    found = []
    for step in range(steps):
        some = [rows[i % len(rows)] for i in range(step * size, (step + 1) * size)]
        longest = max(map(len, some))
        ids, mask = np.zeros((2, size, longest), np.int32)
        for i, row in enumerate(some):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        chosen = (draw.random(ids.shape) < MASKED) & (mask == 1)
        chosen[:, 1] = True  # one at least
        labels = np.where(chosen, ids, IGNORED).astype(np.int32)
        kind = draw.random(ids.shape)
        ids = np.where(chosen & (kind < 0.8), MASK_ID, ids)
        other = draw.integers(1000, 30_000, ids.shape)
        ids = np.where(chosen & (kind > 0.9), other, ids).astype(np.int32)
        found.append({"ids": ids, "mask": mask, "labels": labels})
    return found


class Trainer:
    """A model in its process that takes steps.

    Args:
        folder: what ``prepare`` wrote.
        threads: that it uses.
    """

    def __init__(self, folder: Path, threads: int):
        self.threads = threads
        self._checkpoint = folder / CLASSIFY / "checkpoint"
        self._models: dict[str, Any] = {}
        self._batches: dict[Any, list] = {}

    def build(self, kind: str, cores: list[int]) -> None:
        """Builds the model for "fine-tune" or "mlm"; from then on these cores alone are used."""
        self._model_of(kind)
        pin(cores)

    def warm_up(self, task: str, count: int) -> dict[str, float]:
        """Takes steps for the first time, which traces graphs.

        Returns:
            as ``steps``, and ``first``, seconds from the call to the end of the first step without
            the time to build the model.
        """
        kind = task.partition(", ")[0]
        self._model_of(kind)
        begin = time.perf_counter()
        found = self.steps(task, count)
        return {**found, "first": time.perf_counter() - begin - found["wall"]}

    def steps(self, task: str, count: int) -> dict[str, float]:
        """Takes steps on the first batches.

        Args:
            task: "fine-tune" or "fine-tune, grouped", "mlm" or "mlm, mixed".
            count: at least 2; the first is not counted.

        Returns:
            ``rows`` and real ``tokens`` of the counted steps; ``cpu`` and ``wall`` seconds;
            ``peak``, megabytes; the mean ``loss`` of all steps.
        """
        kind, _, how = task.partition(", ")
        model = self._model_of(kind)
        data: list[Any] = self._data(kind, how, count)
        if kind == "mlm":
            rows = sum(len(each["ids"]) for each in data[1:])
            tokens = sum(int(each["mask"].sum()) for each in data[1:])
        else:
            rows = sum(map(len, data[1:]))
            tokens = 0
        forget_peak()
        ticks: list[Clock] = []
        loss = self.take(kind, model, data, lambda: ticks.append(Clock.now()))
        if len(ticks) != count:
            raise ValueError(f"{len(ticks)} steps were taken, expected {count}.")
        took = ticks[-1].since(ticks[0])
        return {
            "rows": rows,
            "tokens": tokens,
            **took._asdict(),
            "peak": memory()["VmHWM"],
            "loss": loss,
        }

    def _model_of(self, kind: str) -> Any:
        if kind not in self._models:
            self._models[kind] = getattr(self, f"_{kind.replace('-', '_')}")()
        return self._models[kind]

    def _data(self, kind: str, how: str, count: int) -> list:
        key = kind, how, count
        if key not in self._batches:
            made = (
                masked_batches(self._checkpoint, count, bool(how))
                if kind == "mlm"
                else batches(count, bool(how))
            )
            self._batches[key] = made
        return self._batches[key]

    def take(self, kind: str, model: Any, data: list, tick: Callable[[], None]) -> float:
        """Takes a step with each batch, calls ``tick`` after it, and returns the mean loss."""
        raise NotImplementedError


class _Fits(Trainer):
    """One that trains by ``fit`` of Keras."""

    def take(self, kind: str, model: Any, data: list, tick: Callable[[], None]) -> float:
        import keras
        import tensorflow as tf

        ticks = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: tick())
        if kind == "mlm":
            spec = {n: tf.TensorSpec([None, None], tf.int32) for n in ("ids", "mask", "labels")}
            dataset = tf.data.Dataset.from_generator(lambda: iter(data), output_signature=spec)
            dataset = dataset.map(self.masked_example)
        else:
            spec = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int32)
            dataset = tf.data.Dataset.from_generator(lambda: _columns(data), output_signature=spec)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(data)))
        return model.fit(dataset, verbose=0, shuffle=False, callbacks=[ticks]).history["loss"][-1]

    @staticmethod
    def masked_example(batch: Any) -> Any:
        raise NotImplementedError


def _columns(data: list[Texts]) -> Iterator[tuple[list[str], list[int]]]:
    for batch in data:
        sentences, labels = zip(*batch, strict=True)
        yield list(sentences), [int(label) for label in labels]


class Ours(_Fits):
    """``fit`` of a task on a ``tf.data.Dataset`` of raw text, and of a Learner on masked ids."""

    padded = False

    def _fine_tune(self) -> Any:
        import bertfam_tf as bf
        from bertfam_tf.training import optimizers

        task = bf.TextClassifier.from_pretrained(self._checkpoint, pair=False)
        task.compile(optimizers.adamw(RATE, SCHEDULE))
        return task

    def _mlm(self) -> Any:
        import bertfam_tf as bf
        from bertfam_tf import heads
        from bertfam_tf.training import optimizers
        from bertfam_tf.training.learner import Learner

        backbone = bf.load_backbone(self._checkpoint)
        head = heads.build(backbone, "masked_lm")
        inputs = {**backbone.token_inputs}
        model = Learner(inputs, backbone(inputs), [_masked_tokens(head)])
        model.compile(optimizers.adamw(RATE, SCHEDULE))
        return model

    def take(self, kind: str, model: Any, data: list, tick: Callable[[], None]) -> float:
        from bertfam_tf.models import unpadding

        if self.padded:
            with unpadding(False):
                return super().take(kind, model, data, tick)
        return super().take(kind, model, data, tick)

    @staticmethod
    def masked_example(batch: Any) -> Any:
        import tensorflow as tf

        ids, mask = batch["ids"], batch["mask"]
        inputs = {"token_ids": ids, "padding_mask": mask, "segment_ids": tf.zeros_like(ids)}
        return inputs, batch["labels"]


class OursPadded(Ours):
    """The same with padding computed."""

    padded = True


class OursHalf(Ours):
    """The same under the policy ``mixed_bfloat16``."""

    def _model_of(self, kind: str) -> Any:
        import keras

        keras.config.set_dtype_policy("mixed_bfloat16")
        return super()._model_of(kind)


def _masked_tokens(head: Any) -> Any:
    import tensorflow as tf

    class MaskedTokens:
        """Cross-entropy of masked tokens; the others do not reach the vocabulary."""

        weights = {"mlm": 1.0}
        heads = {"mlm": head}

        def loss(self, outputs: Any, heads: Any, batch: Any) -> Any:
            chosen = batch.targets != IGNORED
            x = tf.boolean_mask(heads["mlm"].select(outputs), chosen)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.boolean_mask(batch.targets, chosen), heads["mlm"].logits(x)
            )
            return {"mlm": (tf.reduce_sum(losses), tf.cast(tf.size(losses), tf.float32))}

    return MaskedTokens()


class KerasHub(_Fits):
    """``fit`` of KerasHub's classifier on raw text."""

    def _fine_tune(self) -> Any:
        import keras

        from tools.bench.cpu.keras_hub_models import classifier

        schedule = keras.optimizers.schedules.PolynomialDecay(RATE, SCHEDULE, 0.0)
        return classifier(
            self._checkpoint,
            128,
            optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )


class Torch(Trainer):
    """transformers' models in a loop of torch, with its Trainer's defaults for the optimizer."""

    half = False

    def _fine_tune(self) -> Any:
        return self._model("AutoModelForSequenceClassification")

    def _mlm(self) -> Any:
        return self._model("AutoModelForMaskedLM")

    def _model(self, name: str) -> Any:
        import torch
        import transformers
        from tokenizers import Tokenizer

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        self._tokenizer = Tokenizer.from_file(str(self._checkpoint / "tokenizer.json"))
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(workloads.LENGTH)
        model = getattr(transformers, name).from_pretrained(
            self._checkpoint, attn_implementation="sdpa"
        )
        optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01, fused=True)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, SCHEDULE)
        return model.train(), optimizer, schedule

    def take(self, kind: str, model: Any, data: list, tick: Callable[[], None]) -> float:
        import torch

        network, optimizer, schedule = model
        losses = []
        for batch in data:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                found = network(**self._inputs(kind, batch)).loss
            found.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(found.item())
            tick()
        return float(np.mean(losses))

    def _inputs(self, kind: str, batch: Any) -> dict[str, Any]:
        import torch

        if kind == "mlm":
            ids, mask, labels = (batch[name] for name in ("ids", "mask", "labels"))
        else:
            sentences, answers = zip(*batch, strict=True)
            encoded = self._tokenizer.encode_batch(list(sentences))
            ids = np.array([each.ids for each in encoded])
            mask = np.array([each.attention_mask for each in encoded])
            labels = np.array([int(answer) for answer in answers])
        arrays = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(x.astype(np.int64)) for name, x in arrays.items()}


class TorchHalf(Torch):
    """The same with autocast to bfloat16."""

    half = True


TASKS = ("fine-tune", "fine-tune, grouped", "mlm", "mlm, mixed")
# Name, class, whether it has a masked language model.
TRAINERS = {
    "ours": ("Ours", True),
    "ours, padded": ("OursPadded", True),
    "ours, bfloat16": ("OursHalf", True),
    "transformers, torch": ("Torch", True),
    "transformers, torch, bfloat16": ("TorchHalf", True),
    "KerasHub": ("KerasHub", False),
}


def trainer(folder: Path, make: str, threads: int) -> Trainer:
    """A trainer by the name of its class."""
    return globals()[make](folder, threads)
