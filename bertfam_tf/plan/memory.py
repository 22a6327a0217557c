"""The memory of a traced step."""

from __future__ import annotations

from itertools import accumulate, islice

from bertfam_tf.plan.layout import Devices
from bertfam_tf.plan.trace import Step

_KINDS = ("weights", "gradients", "activations")


def peak_memory(step: Step, devices: Devices) -> dict[str, float]:
    """Returns the bytes of each kind of tensor, at the operation with the most live bytes."""
    created: dict[int, int] = {}  # the operation that computes a tensor
    last: dict[int, int] = {}  # the last operation that reads it
    forward: dict[int, int] = {}  # the last one in the forward pass
    leaves: set[int] = set()  # tensors that are read outside of their block
    starts: dict[str, int] = {}  # the first operation of each block's gradient
    for i, op in enumerate(step.ops):
        if op.backward and op.block is not None:
            starts.setdefault(op.block, i)
        for x in op.outputs:
            created[x] = last[x] = forward[x] = i
        for x in op.inputs:
            last[x] = i
            if not op.backward:
                forward[x] = i
                if op.block != step.ops[created[x]].block:
                    leaves.add(x)
    for x, tensor in enumerate(step.tensors):
        if tensor.kind == "gradients":
            last[x] = len(step.ops)
    freed = dict(last)
    for i, op in enumerate(step.ops):
        if op.in_place and op.outputs:
            size = step.tensors[op.outputs[0]].size
            same = (x for x in op.inputs if last[x] == i and step.tensors[x].size == size)
            freed.update((x, i - 1) for x in islice(same, 1))
    changes = {kind: [0.0] * (len(step.ops) + 2) for kind in _KINDS}
    for x, tensor in enumerate(step.tensors):
        size = tensor.size / (devices.tensor_parallel if tensor.divided else 1)
        block = step.ops[created[x]].block
        spans = [(created[x], freed[x])]
        dropped = devices.recompute and block is not None and x not in leaves
        if dropped and created[x] < starts.get(block or "", 0) <= last[x]:
            spans = [(created[x], forward[x]), (starts[block or ""], freed[x])]
        for start, end in spans:
            changes[tensor.kind][start] += size
            changes[tensor.kind][end + 1] -= size
    live = {kind: list(accumulate(deltas)) for kind, deltas in changes.items()}
    totals = [sum(sizes) for sizes in zip(*live.values(), strict=True)]
    peak = totals.index(max(totals))
    return {kind: sizes[peak] for kind, sizes in live.items()}
