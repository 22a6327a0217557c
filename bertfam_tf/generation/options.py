"""Options of generation."""

from __future__ import annotations

from dataclasses import dataclass

from bertfam_tf.validation import check, setting


@dataclass(frozen=True)
class Options:
    """Options of text generation.

    Args:
        max_new_tokens: the maximum length of a continuation.
        temperature: logits are divided by it before sampling. None for greedy search, unless
            ``top_k``, ``top_p`` or ``min_p`` ask for sampling (at temperature 1).
        top_k: samples only from the k most likely tokens (Fan et al. 2018, arXiv 1805.04833).
        top_p: samples only from the smallest set of tokens whose probabilities sum up to it
            (nucleus sampling, Holtzman et al. 2019, arXiv 1904.09751).
        num_beams: the number of beams; 1 disables beam search.
        length_penalty: the score of a hypothesis of n new tokens is its log-probability divided by
            n to this power: positive values favour long hypotheses, negative values short ones.
        repetition_penalty: the logits (in beam search, the log-probabilities) of tokens that the
            prompt or the continuation contains are divided by it if positive, else multiplied
            (CTRL, arXiv 1909.05858); 1 changes nothing.
        no_repeat_ngram_size: n-grams of this many tokens occur only once in the prompt and its
            continuation; 0 allows repetition.
        min_new_tokens: the number of tokens before which no stop token is chosen.
        min_p: samples only from tokens whose probability is at least this fraction of the most
            likely token's (Nguyen et al. 2024, arXiv 2407.01082).

    Raises:
        ValueError: if a value is outside its range, ``min_new_tokens`` is above
            ``max_new_tokens``, or beam search is combined with sampling.
    """

    max_new_tokens: int = setting(64, at_least=1)
    temperature: float | None = setting(None, above=0)
    top_k: int | None = setting(None, at_least=1)
    top_p: float | None = setting(None, above=0, at_most=1)
    num_beams: int = setting(1, at_least=1)
    length_penalty: float = setting(1.0)
    repetition_penalty: float = setting(1.0, above=0)
    no_repeat_ngram_size: int = setting(0, at_least=0)
    min_new_tokens: int = setting(0, at_least=0)
    min_p: float | None = setting(None, above=0, at_most=1)

    def __post_init__(self) -> None:
        if self.temperature == 0:
            raise ValueError("temperature must be above 0, got 0; None is greedy search.")
        check(self)
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must be at most max_new_tokens, {self.max_new_tokens}, got "
                f"{self.min_new_tokens}."
            )
        if self.num_beams > 1 and self.samples:
            raise ValueError(
                "Beam search does not support temperature, top_k, top_p or min_p; sample with "
                "num_beams=1."
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random."""
        values = (self.temperature, self.top_k, self.top_p, self.min_p)
        return any(value is not None for value in values)

    @property
    def restricts_repetition(self) -> bool:
        """Whether logits depend on which tokens occurred."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0
