"""A server, or another Python program, as a process of its own."""

import subprocess
import sys

from tests.support import checkout


def start(*arguments, **options) -> subprocess.Popen:
    """Starts Python with these arguments, and our packages on its path; pipes output by default."""
    # NiceGUI serves nothing where it sees that pytest runs.
    variables = {k: v for k, v in checkout.environment().items() if not k.startswith("PYTEST")}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=variables,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
