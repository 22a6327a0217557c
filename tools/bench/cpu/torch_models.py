"""transformers' models as modules from ids to what answers are made of."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tools.bench.cpu.workloads import ANSWER, CLASSIFY, EMBED, TAG

_CLASSES = {
    CLASSIFY: transformers.AutoModelForSequenceClassification,
    EMBED: transformers.AutoModel,
    TAG: transformers.AutoModelForTokenClassification,
    ANSWER: transformers.AutoModelForQuestionAnswering,
}


class Answers(torch.nn.Module):
    """A model with what follows it.

    Call: int64 (batch, length) ids, mask and, of two texts, segments.

    Returns:
        float32: probabilities (batch, labels); embeddings (batch, hidden); probabilities (batch,
        length, tags); or logits of start and end (batch, length, 2).
    """

    def __init__(self, model: torch.nn.Module, kind: str):
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, ids, mask, segments=None):
        given = {} if segments is None else {"token_type_ids": segments}
        found = self.model(input_ids=ids, attention_mask=mask, **given)
        if self.kind == EMBED:
            real = mask.unsqueeze(-1).float()
            means = (found.last_hidden_state * real).sum(1) / real.sum(1)
            return torch.nn.functional.normalize(means, dim=-1)
        if self.kind == ANSWER:
            return torch.stack([found.start_logits, found.end_logits], -1)
        return torch.softmax(found.logits, -1)


def model(checkpoint: Path, kind: str, attention: str) -> Answers:
    """A checkpoint's model for one kind of answer, with an implementation of attention."""
    transformers.utils.logging.disable_progress_bar()
    loaded = _CLASSES[kind].from_pretrained(checkpoint, attn_implementation=attention)
    return Answers(loaded, kind).eval()
