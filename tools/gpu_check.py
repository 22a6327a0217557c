"""Checks training on a GPU in four minutes: `python -m tools.gpu_check [--save FILE]`."""

import sys

from tools.bench import training

if __name__ == "__main__":
    sys.argv[1:1] = ["--seconds", "240", "--engines", "bertfam_tf", "compiled"]
    training.main()
