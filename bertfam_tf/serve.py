"""The previous name of ``bertfam_serve``, for one release."""

import sys
import warnings
from typing import Any

import bertfam_serve
from bertfam_tf.export import runtime

warnings.warn(
    "bertfam_tf.serve is now bertfam_serve, and load, Servable, Code and ServingError are in "
    "bertfam_tf.export.runtime.",
    FutureWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    return getattr(runtime if name in runtime.__all__ else bertfam_serve, name)


if __name__ == "__main__":
    from bertfam_serve.__main__ import main

    sys.exit(main())
