"""Settings of pretraining examples."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CorpusConfig:
    """Text of pretraining; ``$NAME`` reads the environment.

    Attributes:
        train, dev: text files, or patterns such as ``books/*.txt``; or folders of shards, whose
            examples were formed before (``serving/batch/corpus.py``): for these ``format`` and
            ``length`` have to be the same, and ``documents`` and ``sentences`` are not read; or a
            table of them by language.
        format: ``stream``, all text as one stream of tokens, for causal models; ``sentences``,
            each sentence alone, for models that read characters (``bilm``); or examples of
            sentences in one of the formats of ``bertfam_tf.objectives``: ``full_sentences``,
            ``doc_sentences``, ``segment_pairs`` or ``sentence_pairs``.
        length: the number of tokens of an example, special tokens included; of a stream, of a
            segment, which is processed in one step.
        end: for a stream, a token after each line, such as ``<eos>``; None for none.
        documents: ``blank_line``, a document is the lines up to an empty one; ``file``; or
            ``line``.
        sentences: ``line``, each line is a sentence; or ``split``, lines are split after full
            stops.
        shuffle: the number of examples among which the next one is drawn; of shards, that are
            shuffled at a time.
        train_translations, dev_translations: for ``tlm``, by pairs of languages such as ``en-fr``,
            two files with translations line by line, or one TSV file with two columns.
        words: for ``bilm``, the number of words that are predicted, the most frequent ones.
        exponent: the exponent of the frequencies of languages, to whose powers they are
            proportional in training: 1 keeps the frequencies of the text, 0 makes them equal.
    """

    train: list[str] | dict[str, list[str]]
    dev: list[str] | dict[str, list[str]]
    format: str = "stream"
    length: int = 128
    end: str | None = None
    documents: str = "blank_line"
    sentences: str = "line"
    shuffle: int = 10_000
    train_translations: dict[str, list[str]] = field(default_factory=dict)
    dev_translations: dict[str, list[str]] = field(default_factory=dict)
    exponent: float = 0.7
    words: int = 100_000

    def __post_init__(self):
        if not 0 <= self.exponent <= 1:
            raise ValueError(f"data.exponent must be from 0 to 1, got {self.exponent}.")
        formats = (
            *("stream", "sentences", "full_sentences", "doc_sentences"),
            *("segment_pairs", "sentence_pairs"),
        )
        if self.words < 1:
            raise ValueError(f"data.words must be at least 1, got {self.words}.")
        if self.format not in formats:
            raise ValueError(
                f"data.format must be one of {', '.join(formats)}, got {self.format!r}."
            )


@dataclass(frozen=True)
class MaskingConfig:
    """How tokens are masked; see ``bertfam_tf.corpora.Masking``.

    Attributes:
        unit: ``piece``; ``word``, whole words; ``ngram``, some consecutive words, as ALBERT and
            XLNet; ``span``, up to ten words that are replaced together, as SpanBERT; or
            ``tagged``, spans that a tagger finds, such as named entities or noun phrases, and
            words, with which SpanBERT is compared (arXiv 1907.10529, table 6).
        longest: for ``ngram``, the largest number of words: ALBERT's is 3, XLNet's 5.
        rate: the share of tokens that are predicted.
        max_predictions: the largest number of predicted tokens of an example; None for no maximum.
        masked, random: of these, the shares that become the mask and a random token; ``plm``
            replaces none.
        copies: the number of copies of the text whose masks, and pairs of segments, differ: passes
            read them in turns, each in an order of its own. 1 for masks that are drawn once (static
            masking); None for new masks in each pass (dynamic masking). Shards have their pairs
            already, which are the same in all copies.
        tagger: for ``tagged``, the directory of a saved ``TokenTagger``, which reads each sentence
            in each pass.
        labels: for ``tagged``, the labels of the spans that are taken; None for all.
        words: for ``tagged``, the proportion of draws that select a word instead of a span.
    """

    unit: str = "piece"
    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1
    copies: int | None = None
    longest: int = 3
    max_predictions: int | None = None
    tagger: str | None = None
    labels: list[str] | None = None
    words: float = 0.5

    def __post_init__(self):
        if self.longest < 1:
            raise ValueError(f"masking.longest must be at least 1, got {self.longest}.")
        units = ("piece", "word", "ngram", "span", "tagged")
        if self.unit not in units:
            raise ValueError(f"masking.unit must be one of {', '.join(units)}, got {self.unit!r}.")
        if (self.tagger is None) == (self.unit == "tagged"):
            raise ValueError(
                "masking.tagger is required by masking.unit tagged and allowed only with it, got "
                f"{self.tagger!r} and {self.unit}."
            )
