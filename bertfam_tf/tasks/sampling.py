"""Sampling of batches in multi-task training."""

from __future__ import annotations

from collections.abc import Mapping

from bertfam_tf.names import unknown


def batches_per_task(
    batches: Mapping[str, int], sampling: float | Mapping[str, float], steps: int | None
) -> dict[str, int]:
    """Returns the number of batches of each task in an epoch.

    Args:
        batches: the number of batches in each task's data; negative if unknown.
        sampling, steps: the same as for ``fit``.
    """
    unknown_size = [name for name, count in batches.items() if count < 0]
    if unknown_size and (steps is None or not isinstance(sampling, Mapping)):
        raise ValueError(
            f"The data set of {unknown_size[0]!r} has no known size: steps_per_epoch is needed, "
            "and sampling has to be the tasks' shares by name."
        )
    if isinstance(sampling, Mapping):
        for name in sampling:
            if name not in batches:
                raise ValueError(unknown("task", name, batches))
        shares = {name: float(sampling.get(name, 0)) for name in batches}
        if min(shares.values()) < 0 or not any(shares.values()):
            raise ValueError(f"sampling must have shares of at least 0, got {dict(sampling)}.")
    else:
        shares = {name: count**sampling for name, count in batches.items()}
    total = sum(batches.values()) if steps is None else steps
    exact = {name: total * share / sum(shares.values()) for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    # The largest remainders are rounded up.
    missing = total - sum(counts.values())
    for name in sorted(exact, key=lambda n: counts[n] - exact[n])[:missing]:
        counts[name] += 1
    return counts
