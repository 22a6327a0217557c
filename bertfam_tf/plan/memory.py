"""The memory of a traced step."""

from __future__ import annotations

from itertools import accumulate, islice

from bertfam_tf.plan.layout import Devices
from bertfam_tf.plan.trace import Step

_KINDS = ("weights", "gradients", "activations")


def peak_memory(step: Step, devices: Devices) -> dict[str, float]:
    """Bytes of each kind of tensor, at the operation at which most are alive."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}  # the last operation that reads a tensor
    forward: dict[int, int] = {}  # the last one that is not of the gradient
    leaves: set[int] = set()  # tensors that are read outside of the call that makes them
    starts: dict[str, int] = {}  # the first operation of the gradient of each call
    for i, op in enumerate(step.ops):
        if op.backward and op.block is not None:
            starts.setdefault(op.block, i)
        for x in op.outputs:
            made[x] = last[x] = forward[x] = i
        for x in op.inputs:
            last[x] = i
            if not op.backward:
                forward[x] = i
                if op.block != step.ops[made[x]].block:
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
        block = step.ops[made[x]].block
        spans = [(made[x], freed[x])]
        dropped = devices.recompute and block is not None and x not in leaves
        if dropped and made[x] < starts.get(block or "", 0) <= last[x]:
            spans = [(made[x], forward[x]), (starts[block or ""], freed[x])]
        for begin, end in spans:
            changes[tensor.kind][begin] += size
            changes[tensor.kind][end + 1] -= size
    alive = {kind: list(accumulate(each)) for kind, each in changes.items()}
    totals = [sum(each) for each in zip(*alive.values(), strict=True)]
    at = totals.index(max(totals))
    return {kind: each[at] for kind, each in alive.items()}
