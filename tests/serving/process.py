"""A server, or another Python program, as a process of its own."""

import os
import pathlib
import subprocess
import sys

import bertfam_tf

ROOT = pathlib.Path(bertfam_tf.__file__).parents[1]
PACKAGES = os.pathsep.join(map(str, (ROOT, ROOT / "serving" / "server")))


def start(*arguments, **options) -> subprocess.Popen:
    """Starts Python with these arguments, and our packages on its path; pipes output by default."""
    # NiceGUI serves nothing where it sees that pytest runs.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**environment, "PYTHONPATH": PACKAGES},
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
