"""Log-likelihoods of texts, as language models compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.tasks.components import Tensors


class ScoresTexts:
    """The part of a language model's task that computes log-likelihoods of texts."""

    _answered: Callable[..., Any]

    def log_likelihood(
        self, x: Any, *, batch_size: int = 16, language: str | int | None = None
    ) -> np.ndarray:
        """Computes the log-likelihood of each text; the class documents which.

        Args:
            x: one text, or several; or data as ``predict`` takes it. Texts are truncated to
                ``max_length`` tokens.
            batch_size: texts that are scored together.
            language: the same as for ``predict``.

        Returns:
            The sum of the tokens' log-probabilities in nats, float32 (texts,).

        Raises:
            ValueError: as ``predict`` raises it.
        """
        return self._answered(
            self._log_likelihoods,
            lambda sums, _: sums.numpy(),
            x,
            batch_size=batch_size,
            language=language,
        )

    def _log_likelihoods(self, features: Tensors) -> tf.Tensor:
        """Maps string (batch,) to float32 (batch,)."""
        raise NotImplementedError
