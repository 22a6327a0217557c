"""The relative links of Markdown files: whether they lead to a file, and to a heading of it."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
_EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$")


def broken_links(file: Path) -> list[str]:
    """A line for each relative link of a Markdown file that leads nowhere."""
    found = []
    for number, line, code in _lines(file.read_text("utf-8")):
        for target in [] if code else _LINK.findall(line):
            if not _EXTERNAL.match(target):
                try:
                    resolve(file, target)
                except ValueError as error:
                    found.append(f"{file.relative_to(ROOT)}:{number}: {error}")
    return found


def resolve(file: Path, target: str) -> tuple[Path, str]:
    """The file that a relative link of ``file`` names, and its anchor. A folder is its README.md.

    Raises:
        ValueError: if there is no such file in the repository, or no such heading in it.
    """
    path, _, anchor = target.partition("#")
    found = Path(os.path.normpath(file.parent / path)) if path else file
    if found.is_dir():
        found = found / "README.md"
    if not found.is_relative_to(ROOT) or not found.is_file():
        raise ValueError(f"there is no {path}")
    if anchor and (found.suffix != ".md" or anchor not in anchors(found.read_text("utf-8"))):
        raise ValueError(f"{found.relative_to(ROOT)} has no heading #{anchor}")
    return found, anchor


def anchors(text: str) -> set[str]:
    """The names of a Markdown file's headings in links, as GitHub and MyST make them."""
    found: set[str] = set()
    for _, line, code in _lines(text):
        heading = _HEADING.match(line)
        if heading and not code:
            title = re.sub(r"\]\([^)]*\)", "]", heading[1]).lower().replace(" ", "-")
            slug = name = re.sub(r"[^\w-]", "", title)
            count = 0
            while name in found:
                count += 1
                name = f"{slug}-{count}"
            found.add(name)
    return found


def moved(file: Path, place: Callable[[Path], str]) -> tuple[str, list[Path]]:
    """The text of a Markdown file with links as they are from another place.

    Args:
        file: whose links are all valid.
        place: the new path of each file.

    Returns:
        the text, and the files that it links to.
    """
    linked: list[Path] = []
    folder = os.path.dirname(place(file))

    def link(found: re.Match) -> str:
        if _EXTERNAL.match(found[1]):
            return found[1]
        target, anchor = resolve(file, found[1])
        linked.append(target)
        path = "" if target == file else os.path.relpath(place(target), folder or ".")
        return path + (f"#{anchor}" if anchor else "")

    lines = [
        line if code else _LINK.sub(link, line) for _, line, code in _lines(file.read_text("utf-8"))
    ]
    return "\n".join(lines) + "\n", linked


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """The lines: number from 1, text, and whether it belongs to a fenced block of code."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if not fence:
            fence = found[1] if found else ""
            yield number, line, bool(found)
        else:
            yield number, line, True
            if found and found[1].startswith(fence) and line.strip() == found[1]:
                fence = ""
