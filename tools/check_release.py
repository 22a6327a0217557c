"""Builds wheel and sdist in dist/ and checks them: python -m tools.check_release [PYTHON …]

Both are installed in a new environment of each Python (python3.11 …; none for only building them),
with the versions of constraints.txt, and tools/smoke_test.py and the command run there, outside of
the checkout. Environments are made one after the other and removed. A complete run writes
tools/results/release.md.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from datetime import date
from pathlib import Path

import bertfam_tf

ROOT = Path(__file__).parent.parent
DIST, REPORT = ROOT / "dist", ROOT / "tools" / "results" / "release.md"
NEEDED = (
    "bertfam_tf/py.typed",
    "bertfam_tf/models/table.json",
    "bertfam_tf/text/kernels/unicode_tables.json",
    "bertfam_tf/cli/main.py",
    "LICENSE",
    *("bertfam_serve/py.typed", "bertfam_serve/__main__.py"),
)
SERVER = "serving/server/"  # where an sdist has it
UNWANTED = ("tests", "tools", "configs", "docs", "serving")
ALL = 3  # Pythons of a complete run
# What must not be in the output of a command.
NOISE = ("Warning", "WARNING", "Traceback")


def build() -> list[Path]:
    """Builds sdist and wheel, with the installed setuptools; returns the wheel first."""
    shutil.rmtree(DIST, ignore_errors=True)
    # setuptools would put files into the wheel that an earlier build has left there.
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        # The wheel is made from the unpacked sdist, so that this has all that it needs.
        build = ("build", "--no-isolation", "--outdir", str(DIST), str(ROOT))
        run([sys.executable, "-m", *build], Path(folder))
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, DIST.iterdir())], ROOT)
    return [next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))]


def names(file: Path) -> list[str]:
    """The files of a wheel or of an sdist, without its top folder."""
    if file.suffix == ".whl":
        return zipfile.ZipFile(file).namelist()
    with tarfile.open(file) as archive:
        return [each.name.partition("/")[2] for each in archive if each.isfile()]


def problems(file: Path) -> list[str]:
    """What is missing in a file, and what should not be there."""
    found = names(file)
    missing = [name for name in NEEDED if not any(each.endswith(name) for each in found)]
    top_level = {each.split("/")[0] for each in found if not each.startswith(SERVER)}
    unwanted = sorted(top_level & set(UNWANTED))
    version = f"-{bertfam_tf.__version__}"
    wrong = [] if version in file.name else [f"{file.name} is not of {bertfam_tf.__version__}"]
    return wrong + [f"{name} is missing" for name in missing] + [f"has {x}/" for x in unwanted]


def check(python: str, file: Path) -> list[str]:
    """Installs a file in a new environment and uses it; returns a row of the report."""
    ours = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    with tempfile.TemporaryDirectory() as folder:
        work, env = Path(folder) / "work", Path(folder) / "env"
        work.mkdir()
        run([python, "-m", "venv", str(env)], work, clean)
        bin = env / "bin"
        pip = [str(bin / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
        start = time.monotonic()
        run([*pip, "-c", str(ROOT / "constraints.txt"), str(file)], work, clean)
        installed = time.monotonic() - start
        size = sum(each.stat().st_size for each in env.rglob("*") if not each.is_symlink())
        shutil.copy(ROOT / "tools" / "smoke_test.py", work)
        start = time.monotonic()
        found = run([str(bin / "python"), "smoke_test.py", str(work)], work, clean)
        version, place = found.splitlines()[-1].split(" ", 1)
        assert version == bertfam_tf.__version__, found
        assert Path(place).is_relative_to(env.resolve()), found
        used = time.monotonic() - start
        for arguments in (["doctor"], ["families", "bert"]):
            printed = run([str(bin / "bertfam"), *arguments], work, clean)
            noise = [word for word in NOISE if word in printed]
            assert not noise, printed
            if arguments == ["doctor"]:
                assert "no: pip install 'bertfam_tf[serve]'" in printed, printed
                doctor = printed
        versions = run([str(bin / "python"), "--version"], work, clean).split()[1]
        print(doctor)
    kind = "wheel" if file.suffix == ".whl" else "sdist"
    return [versions, kind, f"{size / 1e9:.1f}", f"{installed:.0f}", f"{used:.0f}"]


def run(command: list[str], folder: Path, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns what it prints; raises ``RuntimeError`` if it fails."""
    print("$", *command, flush=True)
    done = subprocess.run(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def report(files: list[Path], rows: list[list[str]]) -> str:
    """The text of tools/results/release.md."""
    sizes = ", ".join(f"`{file.name}` {file.stat().st_size / 1e3:.0f} kB" for file in files)
    heading = ["Python", "file", "environment, GB", "installing, s", "smoke test, s"]
    table = [heading, ["---"] * len(heading), *rows]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in table)
    return f"""# Wheel and sdist in new environments

`make release`, {date.today()}, {platform.machine()}, {os.cpu_count()} cores shared with other work:
{sizes}.
`twine check --strict` accepts both. They contain {", ".join(f"`{name}`" for name in NEEDED)},
and no tests.

Each was installed with the versions of `constraints.txt`, without extras, and used outside of the
checkout: `tools/smoke_test.py` (train two steps, save, load, export, compare), and, without
warnings, `bertfam doctor` and `bertfam families bert`.

{lines}
"""


def main() -> None:
    files = build()
    wrong = [f"{file.name}: {problem}" for file in files for problem in problems(file)]
    if wrong:
        sys.exit("\n".join(wrong))
    rows = [check(python, file) for python in sys.argv[1:] for file in files]
    text = report(files, rows)
    print(text)
    if len(sys.argv) > ALL:
        REPORT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
