"""A plan as plain text."""

from __future__ import annotations

from collections.abc import Callable

from bertfam_tf.plan.layout import GIB, Plan, StagePlan


def table(plan: Plan) -> str:
    """Formats a plan as plain text: a row for each quantity, a column for each stage."""
    devices, stages = plan.devices, plan.stages
    lines = [
        ("parameters", ", ".join(dict.fromkeys(f"{s.parameters:,}" for s in stages))),
        ("devices", f"{devices.count}: {devices.replicas} copies of the model, each on "
                    f"{devices.tensor_parallel}; {devices.dtype}"),
        ("gradients", f"{devices.accumulation} micro-batches; gradient checkpointing is "
                      f"{'on' if devices.recompute else 'off'}"),
        ("speed", f"{devices.mfu:.0%} (MFU) of {devices.assumed_peak / 1e12:g} TFLOP/s per device"
                  f"{'' if devices.peak else ', the assumed peak of an NVIDIA A100 (--peak)'}"),
    ]  # fmt: skip
    rows: list[tuple[str, Callable[[StagePlan], str]]] = [
        ("length", lambda s: f"{s.length:,}"),
        ("batch size", lambda s: f"{s.batch_size:,}"),
        ("batch per device", lambda s: f"{s.device_batch:,}"),
        ("steps", lambda s: f"{s.steps:,}"),
        ("MFLOP per token", lambda s: f"{s.flops_per_token / 1e6:,.1f}"),
        ("TFLOP per step and device", lambda s: f"{s.step_flops / 1e12:,.3f}"),
        ("weights, GiB", lambda s: f"{s.weights / GIB:.2f}"),
        ("optimizer, GiB", lambda s: f"{s.optimizer / GIB:.2f}"),
        ("gradients, GiB", lambda s: f"{s.gradients / GIB:.2f}"),
        ("activations, GiB", lambda s: f"{s.activations / GIB:.2f}"),
        ("memory per device, GiB", lambda s: f"{s.memory / GIB:.2f}"),
        ("sent for gradients, GB/step", lambda s: f"{s.data_bytes / 1e9:.3f}"),
        ("sent within the model, GB/step", lambda s: f"{s.tensor_bytes / 1e9:.3f}"),
        ("seconds per step", lambda s: f"{s.seconds:.3g}"),
        ("hours", lambda s: f"{s.steps * s.seconds / 3600:,.2f}"),
    ]
    width = max(len(name) for name, _ in rows)
    text = [f"{name.ljust(width)}  {value}" for name, value in lines]
    cells = [[value(stage) for stage in stages] for _, value in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for (name, _), row in zip(rows, cells, strict=True):
        values = "  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True))
        text.append(f"{name.ljust(width)}  {values}")
    cost = "" if plan.cost is None else f", cost {plan.cost:,.2f}"
    text.append(f"{'total'.ljust(width)}  {plan.hours:,.2f} hours{cost}")
    if devices.memory is not None:
        needed = f"{plan.memory / GIB:.1f} of {devices.memory:g} GiB"
        if plan.fits:
            text.append(f"The run fits the memory of a device: {needed}.")
        else:
            fitting = "; or ".join(plan.advice) or "no other layout of these devices"
            text.append(f"The run needs too much memory: {needed}. Layouts that fit: {fitting}.")
    return "\n".join(text)
