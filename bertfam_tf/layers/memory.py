"""The memory of earlier segments is data: an input and an output of each call."""

from keras import ops


def prepend_memory(memory, x):
    """``memory`` (batch, memory length, width) and after it ``x`` (batch, length, width).

    No gradient goes into the memory (arXiv 1901.02860, section 3.2).
    """
    return ops.concatenate([ops.stop_gradient(memory), x], axis=1)


def updated_memory(memory, x, mem_len: int | None = None, reuse_len: int | None = None):
    """The memory for the next segment.

    Args:
        memory: (batch, memory length, width), of the segments before.
        x: (batch, length, width), the layer's input.
        mem_len: how many positions are kept at most, the last ones; None keeps all.
        reuse_len: how many positions of ``x`` count, the first ones; None for all.

    Returns:
        (batch, new memory length, width), without gradient.
    """
    kept = ops.concatenate([memory, x[:, :reuse_len]], axis=1)
    if mem_len is not None:
        kept = kept[:, -mem_len:] if mem_len else kept[:, :0]
    return ops.stop_gradient(kept)
