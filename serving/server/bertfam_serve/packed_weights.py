"""oneDNN's packed weights: for exports in bfloat16.

With ``TF_ONEDNN_ASSUME_FROZEN_WEIGHTS``, oneDNN rearranges the second factor of a fused product
once and keeps it, instead of in each call. The variable holds for the whole process, and is wrong
for a model with fused products of two activations: they would keep the values of the first request.
Exports of this package have none.
"""

import os
from pathlib import Path

from bertfam_tf.export.runtime import loader
from bertfam_tf.export.runtime.status import Code, ServingError

VARIABLE = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
_enabled = False


def enable(base_path: str | os.PathLike[str]) -> bool:
    """Turns them on for this process if all versions of a model compute in bfloat16.

    In float32 they are not turned on: they take twice the memory, gain less, and with AVX2 lose in
    batches. It has to be called before TensorFlow runs a product. A variable that is set already
    stays as it is.

    Args:
        base_path: the directory with the versions ``1/``, ``2/``, ….

    Returns:
        Whether it turned them on.
    """
    global _enabled
    if VARIABLE in os.environ or not os.path.isdir(base_path):
        return False
    versions = [child for child in Path(base_path).iterdir() if child.name.isdecimal()]
    if not versions or not all(map(_computes_in_bfloat16, versions)):
        return False
    os.environ[VARIABLE] = "1"
    _enabled = True
    return True


def check(version_dir: str | os.PathLike[str]) -> None:
    """Refuses a model of unknown origin after ``enable``.

    Raises:
        ServingError: FAILED_PRECONDITION.
    """
    if _enabled and not loader.has_card(version_dir):
        raise ServingError(
            Code.FAILED_PRECONDITION,
            f"{os.fspath(version_dir)} is no export of bertfam_tf, and this server assumes that "
            f"all matrix products have constant weights: start it with {VARIABLE}=0.",
        )


def _computes_in_bfloat16(version_dir: Path) -> bool:
    return loader.read_card(version_dir).get("dtype") == "bfloat16"
