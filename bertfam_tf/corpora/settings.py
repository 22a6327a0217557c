"""Settings of pretraining examples."""

from __future__ import annotations

from dataclasses import dataclass, field

from bertfam_tf.validation import check, check_unused, setting

FORMATS = (
    *("stream", "sentences", "full_sentences", "doc_sentences"),
    *("segment_pairs", "sentence_pairs"),
)
# The units of masking that a setting is for.
_UNITS = {"longest": "ngram", "tagger": "tagged", "labels": "tagged", "words": "tagged"}


@dataclass(frozen=True)
class CorpusConfig:
    """Text of pretraining; ``$NAME`` reads the environment.

    Attributes:
        train, dev: text files, which may be compressed by gzip, or patterns such as
            ``books/*.txt.gz``; or folders of shards, whose
            examples were formed before (``serving/batch/corpus.py``): for these ``format`` and
            ``length`` have to be the same, and ``documents`` and ``sentences`` are not read; or a
            table of lists of them by language.
        format: ``stream``, all text as one stream of tokens, for causal models; ``sentences``,
            single sentences, for models that read characters (``bilm``); or examples of sentences
            in one of the formats of ``bertfam_tf.corpora``: ``full_sentences``, ``doc_sentences``,
            ``segment_pairs`` or ``sentence_pairs``.
        length: the number of tokens of an example, special tokens included; for a stream, the
            number of tokens of a segment, which is processed in one step.
        end: for a stream, a token after each line, such as ``<eos>``; None for none or, in
            byte-level BPE without ``add_prefix_space``, for a line feed.
        documents: ``blank_line``, a document is the lines up to an empty one; ``file``; or
            ``line``.
        sentences: ``line``, each line is a sentence; or ``split``, lines are split after full
            stops.
        shuffle: the size of the shuffle buffer, in examples.
        train_translations, dev_translations: for ``tlm``, by pairs of languages such as ``en-fr``,
            two files with translations line by line, or one TSV file with two columns.
        words: for ``bilm``, the number of words that are predicted: the most frequent ones.
        exponent: languages are sampled in proportion to this power of their frequencies: 1 keeps
            the frequencies of the text, 0 makes them equal.
    """

    train: list[str] | dict[str, list[str]]
    dev: list[str] | dict[str, list[str]]
    format: str = setting("stream", choices=FORMATS)
    length: int = setting(128, at_least=1)
    end: str | None = None
    documents: str = setting("blank_line", choices=("blank_line", "file", "line"))
    sentences: str = setting("line", choices=("line", "split"))
    shuffle: int = setting(10_000, at_least=1)
    train_translations: dict[str, list[str]] = field(default_factory=dict)
    dev_translations: dict[str, list[str]] = field(default_factory=dict)
    exponent: float = setting(0.7, at_least=0, at_most=1)
    words: int = setting(100_000, at_least=1)

    def __post_init__(self):
        check(self, "data")
        if self.format == "stream":
            why = "for data.format stream, which is all text in its order"
            check_unused(self, "data", ("documents", "sentences", "shuffle"), why)
        else:
            check_unused(self, "data", ("end",), "unless data.format is stream")
        if self.format == "sentences":
            why = "for data.format sentences, whose buffer has a fixed size"
            check_unused(self, "data", ("shuffle",), why)
        else:
            check_unused(self, "data", ("words",), "unless data.format is sentences")
        if not isinstance(self.train, dict) or len(self.train) < 2:
            why = "unless data.train is a table of several languages"
            check_unused(self, "data", ("exponent",), why)


@dataclass(frozen=True)
class MaskingConfig:
    """How tokens are masked; see ``bertfam_tf.corpora.Masking``.

    Attributes:
        unit: ``piece``; ``word``, whole words; ``ngram``, some consecutive words, as ALBERT and
            XLNet; ``span``, up to ten words that are replaced together, as SpanBERT; or
            ``tagged``, spans that a tagger finds, such as named entities or noun phrases, and
            words, with which SpanBERT is compared (arXiv 1907.10529, table 6).
        longest: for ``ngram``, the maximum number of words: 3 in ALBERT, 5 in XLNet.
        rate: the proportion of tokens that are predicted.
        max_predictions: the maximum number of predicted tokens of an example; None for no maximum.
        masked, random: the proportions of predicted tokens that become the mask token and a random
            token; ``plm`` replaces none.
        copies: the number of copies of the text with different masks and segment pairs, which
            passes read in turns. 1 draws masks once (static masking); None draws new masks in each
            pass (dynamic masking). The pairs of shards are the same in all copies.
        tagger: for ``tagged``, the directory of a saved ``TokenTagger``, which reads each sentence
            in each pass.
        labels: for ``tagged``, the labels of the spans that are taken; None for all.
        words: for ``tagged``, the proportion of draws that select a word instead of a span.
    """

    unit: str = setting("piece", choices=("piece", "word", "ngram", "span", "tagged"))
    rate: float = setting(0.15, at_least=0, at_most=1)
    masked: float = setting(0.8, at_least=0, at_most=1)
    random: float = setting(0.1, at_least=0, at_most=1)
    copies: int | None = setting(None, at_least=1)
    longest: int = setting(3, at_least=1)
    max_predictions: int | None = setting(None, at_least=1)
    tagger: str | None = None
    labels: list[str] | None = None
    words: float = setting(0.5, at_least=0, at_most=1)

    def __post_init__(self):
        check(self, "masking")
        if self.masked + self.random > 1:
            raise ValueError(
                "masking.masked and masking.random must add up to at most 1, got "
                f"{self.masked} and {self.random}."
            )
        for name, unit in _UNITS.items():
            if self.unit != unit:
                check_unused(self, "masking", (name,), f"unless masking.unit is {unit}")
        if self.unit == "tagged" and self.tagger is None:
            raise ValueError("masking.tagger is required by masking.unit tagged.")
