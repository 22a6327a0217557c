"""Builds the documentation: `make docs` (and `make docs-links`, which asks every external link).

Sphinx reads one folder, so its pages are written to build/docs-source: the Markdown files of docs/
and of other folders that belong to the site, files of code that pages link to, and the pages of
``reference``. Links are rewritten for these places. One that leads nowhere is an error.
"""

import argparse
import shutil
import sys
from pathlib import Path

from sphinx.cmd import build as sphinx

from tools.docs import reference
from tools.docs.links import ROOT, broken_links, moved

SOURCES, OUTPUT = ROOT / "build/docs-source", ROOT / "build/docs"
_PICTURES = {".png"}
_LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".json": "json"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the documentation in build/docs.")
    parser.add_argument("builder", nargs="?", default="html", choices=("html", "linkcheck"))
    builder = parser.parse_args().builder
    checked = [*written_pages(), ROOT / "README.md"]
    broken = [line for file in checked for line in broken_links(file)]
    if broken:
        print(*broken, sep="\n", file=sys.stderr)
        return 1
    write_sources(SOURCES)
    output = OUTPUT if builder == "html" else ROOT / "build/docs-links"
    shutil.rmtree(output, ignore_errors=True)
    quiet = ["--quiet", "--fail-on-warning", "--keep-going"] if builder == "html" else []
    # A change of a docstring is not seen by Sphinx' cache, so that every build is a new one.
    options = ["--builder", builder, "--fresh-env", "--conf-dir", str(ROOT / "docs"), *quiet]
    cache = ["--doctree-dir", str(ROOT / "build/docs-cache")]
    status = sphinx.main([*options, *cache, str(SOURCES), str(output)])
    if status == 0 and builder == "html":
        print(f"{output.relative_to(ROOT)}/index.html")
    return status


def written_pages() -> list[Path]:
    """The Markdown files of the site."""
    folders = ("docs", "tools/results")
    return [
        *(file for folder in folders for file in sorted((ROOT / folder).rglob("*.md"))),
        *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")),
    ]


def write_sources(directory: Path) -> None:
    """Writes what Sphinx reads."""
    shutil.rmtree(directory, ignore_errors=True)
    for path, text in reference.pages().items():
        _write(directory / path, text)
    known, waiting = set(), written_pages()
    while waiting:
        file = waiting.pop()
        if file not in known and file != ROOT / "README.md":
            known.add(file)
            waiting += _write_file(file, directory / place(file))


def place(file: Path) -> str:
    """The path of a file of the repository in the sources; README.md is the first page."""
    path = file.relative_to(ROOT).as_posix()
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/") if file.suffix in {".md", *_PICTURES} else f"files/{path}.md"


def _write_file(file: Path, target: Path) -> list[Path]:
    """Writes a page, or copies a picture. Returns the files that the page links to."""
    if file.suffix in _PICTURES:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return []
    if file.suffix == ".md":
        text, linked = moved(file, place)
        if file not in written_pages():
            text = f"---\norphan: true\n---\n\n{text}"
        _write(target, text)
        return linked
    language = _LANGUAGES.get(file.suffix, "text")
    code = file.read_text("utf-8")
    title = file.relative_to(ROOT).as_posix()
    _write(target, f"---\norphan: true\n---\n\n# {title}\n\n`````{language}\n{code}`````\n")
    return []


def _write(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
