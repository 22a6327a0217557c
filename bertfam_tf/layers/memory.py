"""What a layer remembers of earlier segments is data: it comes in and goes out."""

from keras import ops


def with_memory(memory, x):
    """``memory`` (batch, memory length, width) and behind it ``x`` (batch, length, width).

    No gradient goes into the memory (arXiv 1901.02860, section 3.2).
    """
    return ops.concatenate([ops.stop_gradient(memory), x], axis=1)


def remembered(memory, x, mem_len: int | None = None, reuse_len: int | None = None):
    """The memory for the segment that follows.

    Args:
        memory: (batch, memory length, width), of the segments before.
        x: (batch, length, width), what went into the layer.
        mem_len: most positions that are kept, the last ones; None keeps all.
        reuse_len: how many positions of ``x`` count, the first ones; None for all.

    Returns:
        (batch, new memory length, width), without gradient.
    """
    kept = ops.concatenate([memory, x[:, :reuse_len]], axis=1)
    if mem_len is not None:
        kept = kept[:, -mem_len:] if mem_len else kept[:, :0]
    return ops.stop_gradient(kept)
