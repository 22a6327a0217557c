"""Generation: from a function that gives next-token logits to token ids, in the graph."""

from bertfam_tf.generation.beams import beam_search
from bertfam_tf.generation.models import (
    CachedDecoder,
    PermutationDecoder,
    Step,
    decoder,
)
from bertfam_tf.generation.options import Options
from bertfam_tf.generation.rows import Progress, advance, among, begin, growing, run
from bertfam_tf.generation.sampling import filtered, sample

__all__ = [
    "CachedDecoder",
    "Options",
    "PermutationDecoder",
    "Progress",
    "Step",
    "advance",
    "among",
    "beam_search",
    "begin",
    "decoder",
    "filtered",
    "generate",
    "growing",
    "run",
    "sample",
]


def generate(step, token_ids, padding_mask, options, stop_ids=(), pad_id=0, seed=None):
    """New tokens for each row, by the search that ``options`` say.

    Args:
        step: as ``Step``.
        token_ids, padding_mask: int32 (rows, length), padded on the left.
        options: ``Options``.
        stop_ids: tokens that end a row.
        pad_id: what stands behind them.
        seed: int32 (2,) for sampling.

    Returns:
        int32 (rows, new tokens): stop tokens are there, and ``pad_id`` behind them.
    """
    if options.num_beams > 1:
        return beam_search(step, token_ids, padding_mask, options, stop_ids, pad_id)
    return run(step, token_ids, padding_mask, options, stop_ids, pad_id, seed)
