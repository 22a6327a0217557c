"""A tag for each word of a text (BERT, arXiv 1810.04805, section 5.3), and entities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import tensorflow as tf

from bertfam_tf import heads, metrics
from bertfam_tf.data import targets
from bertfam_tf.data.inputs import LABEL, TEXT, Fields, as_text
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.components import Evaluation, Signature, TaskComponents, Tensors
from bertfam_tf.tasks.options import (
    FeatureArguments,
    FeatureOptions,
    LoadingArguments,
    classes,
    option,
)
from bertfam_tf.tasks.preprocessing import WindowedPreprocessor
from bertfam_tf.tasks.pretrained import checked_labels
from bertfam_tf.tasks.tag_targets import TagTargets, WordAccuracy, of_words, word_labels, word_loss
from bertfam_tf.tasks.task import Task
from bertfam_tf.text import Tokenizer, tokenize_words, with_prefix_space
from bertfam_tf.text.kernels.graph import flags
from bertfam_tf.text.kernels.internals import parts_of
from bertfam_tf.text.splitting import Split, Words, WordSplitter

_OUTSIDE = "O"
_STRIDE = 128
_MAX_ENTITIES = 64
# Padding of answers with fewer words than others; "" or 0 for outputs that are not listed.
_PADDING = {"start": -1, "end": -1, "offsets": -1}


@dataclass(frozen=True)
class TaggerOptions(FeatureOptions):
    """Options of ``TokenTagger``."""

    tags: Sequence[str] = classes()
    split: Split = option("spaces", settable=True, kw_only=True)
    stride: int | None = option(None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tags", checked_labels(self.tags))
        invalid = [tag for tag in self.tags if tag.split() != [tag]]
        if invalid:
            raise ValueError(f"The tag {invalid[0]!r} is empty or contains white space.")
        WordSplitter(self.split)

    def resolved(self, backbone: Backbone) -> TaggerOptions:
        stride = self.stride
        if stride is None:
            length = self.max_length or backbone.max_length or 4 * _STRIDE
            stride = min(_STRIDE, length // 4)
        return dataclasses.replace(super().resolved(backbone), stride=stride)


class TaggerArguments(FeatureArguments, total=False):
    """``TaggerOptions`` as keyword arguments."""

    split: Split
    stride: int | None


class PretrainedTaggerArguments(TaggerArguments, LoadingArguments, total=False):
    """Keyword arguments of ``TokenTagger.from_pretrained``."""


class TokenTagger(Task):
    """One tag of a fixed list for each word: named entities, parts of speech, chunks.

    A text is its words with white space between them. ``fit``, ``evaluate`` and ``predict`` take
    lists of lists of words as well. Each word is split into tokens on its own, as Hugging Face's
    ``is_split_into_words`` does, and its first token decides its tag, also in training. Texts
    longer than ``max_length`` are read in overlapping windows; a word's tag comes from the window
    in which it has the most context. A word without tokens (such as control characters) is tagged
    "O" (the first tag, if there is no "O") with a score of 0, so that every word is returned once.

    Labels are lists of tags (or of their indices), one for each word, or one string for each text
    with white space between the tags.

    ``predict`` returns for each text its words: ``{"word", "tag", "score", "start", "end"}``.
    ``start`` and ``end`` are offsets in characters of the text; of a list of words, of these with
    one space between them. ``evaluate`` returns the ``precision``, ``recall`` and ``f1`` of
    entities and the ``accuracy``, as ``metrics.entity_scores`` does; only ``accuracy`` if the tags
    mark no entities. It ignores weights in a data set.

    Exports return answers of a fixed width, which ``export`` takes: ``max_tokens``, the number of
    words in an answer (None for ``max_length``, the most that one window can have; REST sends
    padding as well, so a smaller width is faster for short texts), and ``max_entities``, the
    number of entities in an answer.

    ``serving_default`` returns each text's words: ``tokens`` and ``tags``, string (batch,
    ``max_tokens``), padded with ""; ``scores``, float32, 0 there; ``offsets``, int32 (batch,
    ``max_tokens``, 2), where each begins and ends, in characters (code points) of the text, -1
    there; and ``count``, int32 (batch,), the number of words of the text. It is larger than
    ``max_tokens`` if words were omitted from the answer.

    ``entities``, if the tags are IOB1, IOB2, IOBES or BILOU, returns ``text`` and ``type``,
    string (batch, ``max_entities``), padded with "": the exact parts of the texts, and their types;
    ``score``, float32, the mean of the words', 0 there; ``start`` and ``end``, int32, characters of
    the text, -1 there; and ``count``, as above.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer. One without ``add_prefix_space`` is rebuilt with it, so that words
            are tokenized as if a space preceded each.
        tags: names of the tags, in the order of the logits.
        feature_layers: the layers whose outputs the head reads: indices, 0 for the embeddings'
            output and -1 for the last layer's, such as ``(-4, -3, -2, -1)``; or ``'all'`` layers
            without the embeddings. None for the last one's.
        combine_layers: how these layers are combined: ``'concatenate'``, ``'sum'``, or ``'mix'``, a
            sum with trained weights (ELMo, arXiv 1802.05365). BERT compares them in table 7 (arXiv
            1810.04805).
        split: where raw texts are split into words, as ``WordSplitter`` takes it: ``"spaces"``, or
            ``"punctuation"`` as well. Lists of words are for ``"spaces"``. It can change later: a
            tagger that was trained on lists of words can read prose once it is ``"punctuation"``.
        stride: the number of tokens by which consecutive windows overlap; None for a quarter of
            ``max_length``, or 128 if that is less.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for fewer than two tags, a repeated or empty one, one with white space, or
            another ``split``; and as ``Task`` and ``Windows`` raise it.
    """

    options_type = TaggerOptions
    pipeline_tag = "token-classification"
    fields = Fields(
        (TEXT,),
        (),
        aliases=((TEXT, "tokens"), (TEXT, "words"), (LABEL, "ner_tags"), (LABEL, "tags")),
        words=True,
    )
    head_name = "tokens"
    answer_name = "words"
    labels_type = targets.Tags

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        tags: Sequence[str],
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[TaggerArguments],
    ):
        super().__init__(backbone, tokenizer, tags, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        tags: Sequence[str] | None = None,
        **options: Unpack[PretrainedTaggerArguments],
    ) -> Self:
        return super().from_pretrained(path, tags, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        head = heads.build(backbone, self.head_name, len(options.tags), **options.head_input)
        inputs = backbone.token_inputs

        def split() -> Split:
            return self.options.split  # which may be set later

        tokenizer = with_prefix_space(tokenizer)
        word_tags = TagTargets(options.tags, split)
        windows = _WordWindows(backbone, tokenizer, options, self.fields, split)
        return TaskComponents(
            inputs=inputs,
            outputs=head(backbone(inputs, outputs=head.reads)),  # (windows, length, tags)
            read=lambda outputs, _: head(outputs),
            distributions=of_words,
            head=head,
            source=head.reads,
            preprocessor=windows,
            postprocess=lambda logits, encoded: _padded(self._tagged(logits, encoded)),
            answer_ids=lambda logits, _: {"logits": tf.cast(logits, tf.float32)},
            to_python=_words,
            targets=word_tags,
            loss=word_loss,
            metrics=lambda: [WordAccuracy()],
            evaluation=Evaluation(self._tags_and_labels, self._scores, word_tags.prepared),
            signatures=self._signatures,
        )

    @property
    def _marks_entities(self) -> bool:
        return metrics.marks_entities(self.tags)

    # From text to answers, as graphs ---------------------------------------------------------

    def _choose(self, logits: tf.Tensor, windows: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns each word's tag, int32 (words,), and score, float32 (words,)."""
        fallback = self.tags.index(_OUTSIDE) if _OUTSIDE in self.tags else 0
        positions = tf.where(windows["word"] >= 0)
        word = tf.gather_nd(windows["word"], positions)[:, tf.newaxis]
        logits = tf.ensure_shape(tf.gather_nd(logits, positions), [None, len(self.tags)])
        scores = tf.nn.softmax(tf.cast(logits, tf.float32))
        count = tf.shape(windows["words"].text.values)
        return (
            tf.tensor_scatter_nd_update(
                tf.fill(count, fallback), word, tf.argmax(scores, -1, tf.int32)
            ),
            tf.scatter_nd(word, tf.reduce_max(scores, -1), count),
        )

    def _tagged(self, logits: tf.Tensor, windows: dict[str, Any]) -> dict[str, tf.RaggedTensor]:
        """Converts logits (windows, length, tags) to the answers of ``serving_default``, ragged."""
        words = windows["words"]
        tag, score = self._choose(logits, windows)
        return {
            "tokens": words.text,
            "tags": words.text.with_values(tf.gather(tf.constant(self.tags), tag)),
            "scores": words.text.with_values(score),
            "offsets": words.start.with_values(
                tf.stack([words.start.values, words.end.values], axis=1)
            ),
        }

    def _entities(self, features: Tensors, width: int | None = None) -> Tensors:
        """Computes the signature ``entities``; ``width`` is the number of entities, or None."""
        windows = self.encode(features)
        tag, score = self._choose(self.forward(windows), windows)
        return _padded(_Spans(self.tags)(features[TEXT], windows["words"], tag, score), width)

    def _signatures(
        self, max_tokens: int | None = None, max_entities: int = _MAX_ENTITIES
    ) -> dict[str, Signature]:
        width = self.max_length if max_tokens is None else max_tokens
        for name, number in (("max_tokens", width), ("max_entities", max_entities)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")

        def words(features: Tensors) -> Tensors:
            windows = self.encode(features)
            return _padded(self._tagged(self.forward(windows), windows), width)

        def entities(features: Tensors) -> Tensors:
            return self._entities(features, max_entities)

        signatures = {"serving_default": Signature(words)}
        return (
            {**signatures, "entities": Signature(entities)} if self._marks_entities else signatures
        )

    # Answers of its own ----------------------------------------------------------------------

    def entities(
        self, x: Any, *, batch_size: int = 32, language: str | int | None = None
    ) -> list[list[dict[str, Any]]]:
        """Returns the entities of each text: ``{"entity", "label", "score", "start", "end"}``.

        ``entity`` is ``text[start:end]``, with offsets in characters; ``score`` is the mean of its
        words' scores. ``metrics.continues`` defines which words form an entity.

        Raises:
            ValueError: when the tags mark no entities; and as ``predict`` raises it.
        """
        if not self._marks_entities:
            raise ValueError(
                f"The tags mark no entities; expected IOB1, IOB2, IOBES or BILOU, not "
                f"{', '.join(self.tags)}."
            )

        def to_python(entities: Tensors, texts: Tensors) -> list[list[dict[str, Any]]]:
            columns = {"entity": entities["text"], "label": entities["type"]}
            columns |= {name: entities[name] for name in ("score", "start", "end")}
            return _unpadded(columns, entities["count"])

        loop: dict[str, Any] = {"batch_size": batch_size, "language": language}
        return self._answered(self._entities, to_python, x, **loop)

    @tf.autograph.experimental.do_not_convert
    def _tags_and_labels(
        self, features: Tensors, labels: tf.Tensor, *_: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns true and predicted tags, int32 (words,), and words per text, int64 (batch,)."""
        windows = self.encode(features)
        true = word_labels(self.tags, windows, labels)
        predicted, _ = self._choose(self.forward(windows), windows)
        return true, predicted, windows["words"].text.row_lengths()

    def _scores(self, answered: Iterable[tuple[Any, tuple]]) -> dict[str, float]:
        names = np.array(self.tags, object)
        true: list[list[str]] = []
        predicted: list[list[str]] = []
        for outputs, _ in answered:
            *columns, counts = (part.numpy() for part in outputs)
            for sentences, column in zip((true, predicted), columns, strict=True):
                parts = np.split(names[column], np.cumsum(counts))[:-1]
                sentences += [part.tolist() for part in parts]
        if self._marks_entities:
            return metrics.entity_scores(true, predicted)
        return {"accuracy": metrics.word_accuracy(true, predicted)}


class _WordWindows(WindowedPreprocessor):
    """Windows of the tokens of all words, each word split on its own.

    Args:
        backbone, tokenizer, options, fields: the same as for ``WindowedPreprocessor``.
        split: returns the mode of ``WordSplitter``.

    Returns:
        The result of ``Windows``; ``words``, the batch's ``Words``; ``word``, int32 (windows,
        longest): the index of a word in the batch at its first token, in the window where it has
        the most context, -1 elsewhere; and the text.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        options: Any,
        fields: Fields,
        split: Callable[[], Split],
    ):
        super().__init__(backbone, tokenizer, options, fields, options.stride)
        self.split = split

    def __call__(self, features: Tensors) -> dict[str, Any]:
        words = WordSplitter(self.split())(features[TEXT])
        language = self.languages.of(features)
        pieces = tokenize_words(self.languages.tokenizer_of(language), words.text)
        inner = pieces.values
        begins = tf.gather(inner.row_splits, pieces.row_splits)
        text = tf.RaggedTensor.from_row_splits(inner.values, begins, validate=False)
        windows = self.in_language(self.windows([text]), language)

        there = tf.where(inner.row_splits[1:] > inner.row_splits[:-1])
        first = tf.gather(inner.row_splits, there)
        size = tf.shape(inner.values, tf.int64)[0] + 1
        word_of = tf.scatter_nd(first, tf.cast(there[:, 0] + 1, tf.int32), [size]) - 1
        begin = tf.gather(tf.cast(begins, tf.int32), windows["document"])
        index = tf.where(windows["max_context"], begin[:, tf.newaxis] + windows["piece"], 0)
        word = tf.where(windows["max_context"], tf.gather(word_of, index), -1)
        return {**windows, "words": words, "word": word, TEXT: features[TEXT]}


def _words(answers: Tensors, texts: Tensors) -> list[list[dict[str, Any]]]:
    """Tagged words as ``predict`` returns them."""
    start, end = tf.unstack(answers["offsets"], axis=2)
    columns = {"word": answers["tokens"], "tag": answers["tags"], "score": answers["scores"]}
    return _unpadded({**columns, "start": start, "end": end}, answers["count"])


class _Spans:
    """Entities of tagged words, in the graph.

    Args:
        tags: the names of the tags, each as ``metrics.parse`` reads it.
    """

    def __init__(self, tags: Sequence[str]):
        self._continues = np.array([[metrics.continues(a, b) for b in tags] for a in tags])
        self._inside = np.array([tag != _OUTSIDE for tag in tags])
        self._types = [metrics.parse(tag)[1] for tag in tags]

    def __call__(
        self, texts: tf.Tensor, words: Words, tag: tf.Tensor, score: tf.Tensor
    ) -> dict[str, tf.RaggedTensor]:
        """Texts, string (batch,), and their words' tags and scores, [words], to entities.

        Returns:
            ragged (batch, (entities)): ``text``, ``type``, ``score``, ``start`` and ``end``.
        """
        rows = words.text.row_splits
        size = tf.size(tag, tf.int64)
        inside = tf.gather(tf.constant(self._inside), tag)
        pairs = tf.stack([tag[:-1], tag[1:]], axis=1)
        parted = flags(rows, size)[1:] | ~tf.gather_nd(tf.constant(self._continues), pairs)
        opens = inside & tf.concat([[True], parted], 0)[:size]
        closes = inside & tf.concat([parted, [True]], 0)[:size]
        first, last = tf.where(opens)[:, 0], tf.where(closes)[:, 0]

        # Entities tile the words that are inside.
        before = tf.concat([[0], tf.cumsum(tf.cast(opens, tf.int64))], 0)
        splits = tf.gather(before, rows)
        number = tf.boolean_mask(before[1:] - 1, inside)
        mean = tf.math.unsorted_segment_mean(
            tf.boolean_mask(score, inside), number, tf.size(first, tf.int64)
        )
        mentions = parts_of(
            texts,
            tf.gather(words.first_byte.values, first),
            tf.gather(words.end_byte.values, last),
            splits,
        )

        columns = {
            "text": mentions,
            "type": tf.gather(tf.constant(self._types), tf.gather(tag, first)),
            "score": mean,
            "start": tf.gather(words.start.values, first),
            "end": tf.gather(words.end.values, last),
        }
        return {
            name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            for name, values in columns.items()
        }


def _padded(parts: dict[str, tf.RaggedTensor], width: int | None = None) -> Tensors:
    """Answers (batch, (parts)) as tensors (batch, width), and ``count``, int32 (batch,).

    Args:
        parts: arrays of the same length for each example.
        width: longer answers are truncated; None for the longest.
    """
    count = tf.cast(next(iter(parts.values())).row_lengths(), tf.int32)
    dense = {
        name: part.to_tensor(_PADDING.get(name), shape=[None, width, *part.shape[2:]])
        for name, part in parts.items()
    }
    return {**dense, "count": count}


def _unpadded(columns: dict[str, tf.Tensor], counts: tf.Tensor) -> list[list[dict[str, Any]]]:
    """Padded answers, (batch, width) each, as lists of dicts; counts: (batch,), how many."""
    rows = []
    values = [value.numpy() for value in columns.values()]
    for row, count in enumerate(counts.numpy().tolist()):
        parts = [value[row, :count] for value in values]
        items = zip(*(as_text(v) if v.dtype == object else v.tolist() for v in parts), strict=True)
        rows.append([dict(zip(columns, item, strict=True)) for item in items])
    return rows
