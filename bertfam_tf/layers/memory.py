"""The memory of earlier segments, which is an input and an output of each call."""

from keras import ops


def prepend_memory(memory, x):
    """Concatenates ``memory`` (batch, memory length, width) and ``x`` (batch, length, width).

    The memory gets no gradient (arXiv 1901.02860, section 3.2).
    """
    return ops.concatenate([ops.stop_gradient(memory), x], axis=1)


def updated_memory(memory, x, mem_len: int | None = None, reuse_len: int | None = None):
    """Returns the memory for the next segment.

    Args:
        memory: (batch, memory length, width), the memory of earlier segments.
        x: (batch, length, width), the layer's input.
        mem_len: the maximum length of the new memory, which keeps the last positions; None for no
            maximum.
        reuse_len: the number of leading positions of ``x`` to keep; None for all.

    Returns:
        (batch, new memory length, width), without gradient.
    """
    kept = ops.concatenate([memory, x[:, :reuse_len]], axis=1)
    if mem_len is not None:
        kept = kept[:, -mem_len:] if mem_len else kept[:, :0]
    return ops.stop_gradient(kept)
