"""Sentence embeddings (Sentence-BERT, arXiv 1908.10084)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, Self, TypeAlias, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import layers
from bertfam_tf.data import targets
from bertfam_tf.data.inputs import TEXT, TEXT_PAIR, TEXTS
from bertfam_tf.data.tables import Columns
from bertfam_tf.metrics import Spearman, nearest, retrieval_scores, unit_length
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.tasks.components import Signature, TaskComponents, Tensors
from bertfam_tf.tasks.embedder_trainer import EmbedderTrainer
from bertfam_tf.tasks.options import LoadingArguments, PairArguments, PairOptions, option
from bertfam_tf.tasks.precision import (
    FLOAT,
    checked_ranges,
    quantize_embeddings,
    quantized,
    ranges_of,
)
from bertfam_tf.tasks.preprocessing import POOLED, SingleRow
from bertfam_tf.tasks.sentence_transformers import Modules
from bertfam_tf.tasks.task import Task
from bertfam_tf.tasks.text_learner import arguments, refuse
from bertfam_tf.text import Tokenizer

# The number of documents that scores consider for each query.
_RETRIEVED = 10
Pooling: TypeAlias = Literal["mean", "first", "last", "max", "weighted_mean", "mean_sqrt_length"]


@dataclass(frozen=True)
class Projection:
    """A dense layer on the pooled vector.

    Attributes:
        width: the output size.
        activation: the same as in ``layers.activation``, or None.
        bias: whether it has one.

    Raises:
        ValueError: for a width below 1, or an unknown activation.
    """

    width: int
    activation: str | None = "tanh"
    bias: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.width, int) or self.width < 1:
            raise ValueError(f"The width of a projection must be positive, got {self.width!r}.")
        if self.activation is not None:
            layers.activation(self.activation)


@dataclass(frozen=True, kw_only=True)
class EmbedderOptions(PairOptions):
    """Options of ``TextEmbedder``."""

    pair: bool | None = option(False, settable=True)
    pooling: Pooling | Sequence[Pooling] = option("mean")
    projections: Sequence[Projection | Mapping[str, Any]] = option(())
    dimensions: int | None = option(None, at_least=1)
    normalize: bool = option(True)
    prompts: Mapping[str, str] | None = option(None)
    default_prompt: str | None = option(None)
    include_prompt: bool = option(True)

    def __post_init__(self) -> None:
        kinds = self.poolings
        unsupported = [kind for kind in kinds if kind not in layers.TokenPooling.KINDS]
        if unsupported or not kinds:
            known = ", ".join(map(repr, layers.TokenPooling.KINDS))
            raise ValueError(f"pooling must be some of {known}, got {self.pooling!r}.")
        prompts = dict(self.prompts or {})
        if self.default_prompt and self.default_prompt not in prompts:
            raise ValueError(unknown("prompt", self.default_prompt, prompts))
        projections = [
            p if isinstance(p, Projection) else Projection(**p) for p in self.projections
        ]
        for name, value in (
            ("pooling", kinds[0] if len(kinds) == 1 else kinds),
            ("projections", tuple(projections)),
            ("prompts", prompts),
            ("default_prompt", self.default_prompt or None),
        ):
            object.__setattr__(self, name, value)

    @property
    def poolings(self) -> tuple[str, ...]:
        """The kinds of pooling."""
        return (self.pooling,) if isinstance(self.pooling, str) else tuple(self.pooling)

    def stored(self) -> dict[str, Any]:
        projections = [asdict(projection) for projection in self.projections]  # type: ignore[arg-type]
        return {**super().stored(), "projections": projections}


class EmbedderArguments(PairArguments, total=False):
    """``EmbedderOptions`` as keyword arguments."""

    pooling: Pooling | Sequence[Pooling]
    projections: Sequence[Projection | Mapping[str, Any]]
    dimensions: int | None
    normalize: bool
    prompts: Mapping[str, str] | None
    default_prompt: str | None
    include_prompt: bool


class PretrainedEmbedderArguments(EmbedderArguments, LoadingArguments, total=False):
    """Keyword arguments of ``TextEmbedder.from_pretrained``."""


class TextEmbedder(Task):
    """Sentence embeddings, compared by cosine similarity.

    ``predict`` returns float32 (texts, width); the width is the backbone's, the last projection's,
    or ``dimensions``. ``from_pretrained`` reads, and ``save_pretrained`` writes, the files of
    sentence-transformers: pooling, dense layers, normalization, prompts, and the maximum length.
    (That library truncates vectors to ``truncate_dim`` after normalization; its results are the
    same with ``encode(…, normalize_embeddings=True)``.) An export has a signature named after each
    prompt that is not empty; ``serving_default`` uses the default prompt. After ``export(…,
    precision="ubinary")``, with ``ranges`` for int8 and uint8, all signatures return quantized
    embeddings. The task has no default loss: pass one to ``compile``.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
        pair: whether an example is two texts.
        pooling: ``"mean"`` over all tokens except padding; ``"first"`` or ``"last"`` token;
            ``"max"`` over tokens; ``"weighted_mean"``, with weights that grow with the position;
            ``"mean_sqrt_length"``, the sum divided by the square root of the number of tokens; or
            several, which are concatenated.
        projections: dense layers on the pooled vector, such as ``[{"width": 256, "activation":
            "tanh", "bias": True}]``; None for no activation.
        dimensions: the size to which vectors are truncated before normalization (Matryoshka
            embeddings, arXiv 2205.13147); None for the full size.
        normalize: whether embeddings have unit length, so that a dot product is the cosine.
        prompts: prefixes of texts by name, such as ``{"query": "query: "}``; ``predict`` selects
            one. None for none.
        default_prompt: the name of the prompt for calls that name none, also in ``fit``; ``""`` for
            no prompt.
        include_prompt: whether the prompt's tokens are pooled.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for an unknown ``pooling``, activation or default prompt, or more
            ``dimensions`` than there are; and as ``Task`` raises it.
        CheckpointError: from ``from_pretrained``, for stored modules that are not supported.
    """

    options_type = EmbedderOptions
    pipeline_tag = "sentence-similarity"
    answer_name = "embedding"
    published_type = Modules
    fields = TEXTS._replace(labelled=False)
    file_labels_type = targets.Number
    trainer_settings = EmbedderTrainer.Settings
    # Settings that the trainer lacks, or that would change its negatives.
    unused_settings = ("batch_tokens", "class_weights", "metrics")

    @classmethod
    def takes_labels(cls, settings: Any) -> bool:
        return settings.objective != "contrastive"

    @classmethod
    def options_of_data(cls, features: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
        # The columns are the trainer's.
        return {}

    @classmethod
    def rows_per_example(cls, columns: Mapping[str, int]) -> int:
        return max(sum(columns.values()), 2)

    def trainer(self, settings: Any) -> EmbedderTrainer:
        return EmbedderTrainer(self, **asdict(settings))

    def score(
        self,
        rows: tf.data.Dataset,
        settings: Any = None,
        *,
        batch_size: int = 32,
        language: str | int | None = None,
    ) -> dict[str, float]:
        """Scores the embeddings of pairs of texts, as ``Task.score``.

        Args:
            rows: pairs of texts, with or without their similarity as the label.
            settings: the ``trainer`` section, for the names of prompts.
            batch_size: examples in a batch of ``predict``.
            language: the language of the texts, the same as for ``predict``.

        Returns:
            With labels, ``spearman``, the correlation of cosines with them; without, the scores of
            ``metrics.retrieval_scores`` for the search of each first text among all second ones and
            negatives.
        """
        examples = list(rows.as_numpy_iterator())
        prompts = getattr(settings, "prompts", None) or [self.default_prompt] * 2
        first, second = ([features[0][name] for features in examples] for name in (TEXT, TEXT_PAIR))
        labelled = len(rows.element_spec) > 1
        negatives = [text for (features, *_) in examples for text in _negatives(features)]
        # A first text with several second ones is one query, for which all of them are relevant.
        texts = first if labelled else list(dict.fromkeys(first))
        documents = second if labelled else list(dict.fromkeys([*second, *negatives]))
        queries, vectors = (
            unit_length(self.predict(x, batch_size=batch_size, prompt=prompt, language=language))
            for x, prompt in zip((texts, documents), prompts, strict=True)
        )
        if labelled:
            metric = Spearman()
            metric.update_state([float(y) for _, y in examples], np.sum(queries * vectors, axis=-1))
            return {"spearman": float(metric.result())}
        place = {text: i for i, text in enumerate(documents)}
        relevant: dict[bytes, list[int]] = {text: [] for text in texts}
        for query, text in zip(first, second, strict=True):
            relevant[query].append(place[text])
        best, _ = nearest(queries, vectors, min(_RETRIEVED, len(documents)))
        return retrieval_scores(best.tolist(), list(relevant.values()), _RETRIEVED)

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[EmbedderArguments],
    ):
        super().__init__(backbone, tokenizer, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, **options: Unpack[PretrainedEmbedderArguments]
    ) -> Self:
        return super().from_pretrained(path, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        inputs = dict(backbone.token_inputs)
        # Only the last layer's first vector is computed; of rows padded on the left it is padding.
        first = options.poolings == ("first",) and not tokenizer.layout.pad_left
        masked = not options.include_prompt and any(options.prompts.values())
        if masked:
            inputs[POOLED] = keras.Input((None,), dtype="int32", name=POOLED)
        reads = "first_token" if first and not masked else "sequence_output"
        policy = backbone.dtype_policy
        pooling = layers.TokenPooling(options.poolings, name="pooling", dtype=policy)
        projections = [
            layers.Dense(
                projection.width,
                activation=projection.activation and layers.activation(projection.activation),
                use_bias=projection.bias,
                name=f"projection_{i}",
                dtype=policy,
            )
            for i, projection in enumerate(options.projections)
        ]
        normalization = layers.UnitNormalization(dtype="float32", name="normalization")

        def read(outputs: Any, inputs: Any) -> Any:
            x = outputs[reads]
            if reads == "sequence_output":
                x = pooling(x, inputs["padding_mask"], inputs.get(POOLED))  # (batch, hidden)
            for projection in projections:
                x = projection(x)
            if options.dimensions is not None:
                if options.dimensions > x.shape[-1]:
                    raise ValueError(
                        f"dimensions must be at most {x.shape[-1]}, got {options.dimensions}."
                    )
                x = x[:, : options.dimensions]
            return normalization(x) if options.normalize else x

        return TaskComponents(
            inputs=inputs,
            outputs=read(backbone(backbone.token_inputs, outputs=reads), inputs),
            read=read,
            source=reads,
            preprocessor=SingleRow(
                backbone,
                tokenizer,
                options,
                self.fields,
                prompt=options.prompts.get(options.default_prompt, ""),
                pool_prompt=not masked,
            ),
            postprocess=lambda outputs, _: {"embedding": tf.cast(outputs, tf.float32)},
            to_python=lambda answers, _: answers["embedding"].numpy(),
            signatures=self._signatures,
        )

    def _compile_defaults(self, steps: int | None = None) -> None:
        raise ValueError(
            "TextEmbedder has no default loss; call compile(loss=…). EmbedderTrainer(embedder) "
            "trains on pairs."
        )

    def _settle_pair(self, stream: tf.data.Dataset) -> None:
        if self.pair is False and TEXT_PAIR in stream.element_spec[0]:
            raise ValueError(
                f"This task takes single texts; the data has a {TEXT_PAIR!r}. "
                "EmbedderTrainer(embedder) trains on pairs."
            )
        super()._settle_pair(stream)

    @property
    def projection_layers(self) -> list[keras.layers.Dense]:
        """The dense layers on the pooled vector."""
        return [self.get_layer(f"projection_{i}") for i in range(len(self.projections))]

    def predict(
        self,
        x: Any,
        *,
        prompt: str | EllipsisType | None = ...,
        precision: str = FLOAT,
        ranges: Any = None,
        batch_size: int = 32,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
        language: str | int | None = None,
        columns: Columns | None = None,
        **others: Any,
    ) -> np.ndarray:
        """Returns the embeddings of raw texts; labels in a data set are ignored.

        Args:
            x, batch_size, verbose, steps, callbacks, language, columns: the same as for
                ``Task.predict``.
            prompt: the name of one of ``prompts``; None for no prompt; by default
                ``default_prompt``.
            precision, ranges: the same as for ``quantize_embeddings``: ``"float32"``, one byte for
                each value with ``"int8"`` or ``"uint8"``, one bit with ``"binary"`` or
                ``"ubinary"``.

        Returns:
            float32 (texts, width), or what ``quantize_embeddings`` returns for the precision.

        Raises:
            ValueError: for a prompt that does not exist; as ``quantize_embeddings`` raises it; and
                as ``Task.predict`` raises it.
            TypeError: for an argument that does not exist.
        """
        refuse("predict", others, arguments(TextEmbedder.predict))
        checked_ranges(precision, ranges, self.outputs[0].shape[-1])
        loop: dict[str, Any] = dict(
            batch_size=batch_size,
            verbose=verbose,
            steps=steps,
            callbacks=callbacks,
            language=language,
            columns=columns,
        )
        if precision != FLOAT:
            return quantize_embeddings(self.predict(x, prompt=prompt, **loop), precision, ranges)
        if isinstance(prompt, EllipsisType):
            return super().predict(x, **loop)
        if prompt not in self._prompted:
            raise ValueError(
                f"There is no prompt {prompt!r}; there are: {', '.join(self.prompts) or 'none'}."
            )
        return self._answered(self._prompted[prompt], self._parts.to_python, x, **loop)

    def ranges(self, x: Any, **kwargs: Any) -> np.ndarray:
        """Returns the minimum and maximum of each dimension over the embeddings of typical texts.

        Args:
            x: a few thousand texts.
            **kwargs: further arguments of ``predict``.

        Returns:
            float32 (2, width), for ``precision="int8"`` and ``"uint8"``.

        Raises:
            ValueError, TypeError: as ``predict`` does.
        """
        return ranges_of(self.predict(x, **kwargs))

    @functools.cached_property
    def _prompted(self) -> dict[str | None, Callable[[Tensors], Tensors]]:
        """Functions from texts to answers, by the name of a prompt; None for no prompt."""
        plain = self._parts.preprocessor
        assert isinstance(plain, SingleRow)

        def answers(encode: SingleRow) -> Callable[[Tensors], Tensors]:
            @tf.autograph.experimental.do_not_convert
            def answer(features: Tensors) -> Tensors:
                encoded = encode(features)
                return self.postprocess(self.forward(encoded), encoded)

            return answer

        prompts = {None: "", **self.prompts}
        return {name: answers(plain.with_prompt(text)) for name, text in prompts.items()}

    def _signatures(self, precision: str = FLOAT, ranges: Any = None) -> dict[str, Signature]:
        limits = checked_ranges(precision, ranges, self.outputs[0].shape[-1])

        def converted(function: Callable[[Tensors], Tensors], inputs: Any = None) -> Signature:
            if precision == FLOAT:
                return Signature(function, inputs)

            @tf.autograph.experimental.do_not_convert
            def answer(features: Tensors) -> Tensors:
                outputs = function(features)
                return {name: quantized(x, precision, limits) for name, x in outputs.items()}

            # Rounding decides the code of a value between two codes.
            return Signature(answer, inputs, repeatable=False)

        signatures = {
            "serving_default": converted(self.answer),
            "ids": converted(self.answer_ids, self.packed_specs),
        }
        if not any(self.prompts.values()):
            return signatures
        for name in ("serving_default", "ids"):
            if name in self.prompts:
                raise ValueError(f"The prompt {name!r} has the name of another signature.")
        return signatures | {name: converted(self._prompted[name]) for name in self.prompts}


def _negatives(features: dict[str, Any]) -> list[bytes]:
    columns = [features[name] for name in features if name not in (TEXT, TEXT_PAIR)]
    return [text for value in columns for text in ([value] if isinstance(value, bytes) else value)]
