"""oneDNN's packed weights, for exports in bfloat16 and, with AVX-512, float32.

With ``TF_ONEDNN_ASSUME_FROZEN_WEIGHTS``, oneDNN rearranges the second factor of a fused product
once and keeps it, instead of in each call. The variable holds for the whole process, and is wrong
for a model with fused products of two activations: they would keep the values of the first request.
Exports of this package's tasks have none; a Keras model that ``bertfam_tf.export`` wrote may.
"""

import os
from pathlib import Path

from bertfam_tf.export.runtime import loader
from bertfam_tf.export.runtime.status import Code, ServingError

VARIABLE = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
_CPU = Path("/proc/cpuinfo")
_enabled = False


def enable(base_path: str | os.PathLike[str]) -> bool:
    """Turns them on for this process if all versions of a model gain by them.

    In bfloat16 they do. In float32 single texts gain with AVX-512, and batches lose without it
    (tools/results/cpu_speed_avx512.md and cpu_speed.md). It has to be called before TensorFlow runs
    a product. A variable that is set already stays as it is.

    Args:
        base_path: the directory with the versions ``1/``, ``2/``, ….

    Returns:
        Whether it turned them on.
    """
    global _enabled
    if VARIABLE in os.environ or not os.path.isdir(base_path):
        return False
    versions = [child for child in Path(base_path).iterdir() if child.name.isdecimal()]
    dtypes = {_dtype(version) for version in versions}
    gaining = {"bfloat16", "float32"} if _has_avx512() else {"bfloat16"}
    if not dtypes or not dtypes <= gaining:
        return False
    os.environ[VARIABLE] = "1"
    _enabled = True
    return True


def check(version_dir: str | os.PathLike[str]) -> None:
    """Refuses a model other than a task's export after ``enable``.

    Raises:
        ServingError: FAILED_PRECONDITION.
    """
    if _enabled and _dtype(version_dir) is None:
        raise ServingError(
            Code.FAILED_PRECONDITION,
            f"{os.fspath(version_dir)} is no export of a task of bertfam_tf, and this server "
            f"assumes that all matrix products have constant weights: start it with {VARIABLE}=0.",
        )


def _dtype(version_dir: str | os.PathLike[str]) -> str | None:
    """Returns the dtype of a task's export; None for other models."""
    card = loader.read_card(version_dir)
    return card.get("dtype") if card.get("task") or card.get("tasks") else None


def _has_avx512() -> bool:
    """Returns whether the CPU has AVX-512; False on systems without ``/proc/cpuinfo``."""
    try:
        return "avx512f" in _CPU.read_text("utf-8").split()
    except OSError:
        return False
