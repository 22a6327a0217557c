"""Options of generation."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Options of text generation.

    Args:
        max_new_tokens: the maximum length of a continuation.
        temperature: logits are divided by it before sampling. None for greedy search, unless
            ``top_k`` or ``top_p`` ask for sampling (at temperature 1).
        top_k: samples only from the k most likely tokens (Fan et al. 2018, arXiv 1805.04833).
        top_p: samples only from the smallest set of tokens whose probabilities sum up to it
            (nucleus sampling, Holtzman et al. 2019, arXiv 1904.09751).
        num_beams: the number of beams; 1 disables beam search.
        length_penalty: the score of a hypothesis of n new tokens is its log-probability divided by
            n to this power: positive values favour long hypotheses, negative values short ones.

    Raises:
        ValueError: if a value is outside its range, or beam search is combined with sampling.
    """

    max_new_tokens: int = 64
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_beams: int = 1
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_beams", "top_k"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is None and name == "top_k":
                continue
            if not whole or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature must be above 0, got {self.temperature!r}; None is greedy search."
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p!r}.")
        if not math.isfinite(self.length_penalty):
            raise ValueError(
                f"length_penalty must be a finite number, got {self.length_penalty!r}."
            )
        if self.num_beams > 1 and self.samples:
            raise ValueError(
                "Beam search does not support temperature, top_k or top_p; sample with num_beams=1."
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random."""
        return any(value is not None for value in (self.temperature, self.top_k, self.top_p))
