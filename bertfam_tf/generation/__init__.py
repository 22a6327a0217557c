"""Generation: greedy search, sampling and beam search, as loops in the graph."""

from bertfam_tf.generation.beams import beam_search
from bertfam_tf.generation.loop import (
    Progress,
    advance,
    begin,
    block_length,
    is_one_of,
    progress_spec,
    run,
    with_room,
)
from bertfam_tf.generation.models import (
    CachedDecoder,
    MemoryDecoder,
    PermutationDecoder,
    Step,
    decoder,
)
from bertfam_tf.generation.options import Options
from bertfam_tf.generation.sampling import filter_logits, sample

__all__ = [
    "CachedDecoder",
    "MemoryDecoder",
    "Options",
    "PermutationDecoder",
    "Progress",
    "Step",
    "advance",
    "beam_search",
    "begin",
    "block_length",
    "decoder",
    "filter_logits",
    "generate",
    "is_one_of",
    "progress_spec",
    "run",
    "sample",
    "with_room",
]


def generate(step, token_ids, padding_mask, options, stop_ids=(), pad_id=0, seed=None):
    """Generates new tokens for each prompt.

    Args:
        step: a ``Step``.
        token_ids, padding_mask: int32 (batch, length), padded on the left.
        options: generation ``Options``.
        stop_ids: the tokens that end a continuation.
        pad_id: the token that fills up finished continuations.
        seed: int32 (2,), for sampling.

    Returns:
        int32 (batch, new tokens), including the stop token, followed by ``pad_id``.
    """
    if options.num_beams > 1:
        return beam_search(step, token_ids, padding_mask, options, stop_ids, pad_id)
    return run(step, token_ids, padding_mask, options, stop_ids, pad_id, seed)
