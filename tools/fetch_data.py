"""Downloads the public data sets of tests, recipes and measurements to data/.

    python -m tools.fetch_data [NAME …]    # folders or files, such as glue/SST-2 (default: all)

tools/data_sources.tsv has the source of each file and the SHA-256 of the stored file. Existing
files are kept. If the table has no digest, the digest is printed, stored in data/sha256.json, and
verified the next time. The data sets have their own licences; several allow only research. Files
are stored in $BERTFAM_DATA if it is set.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bertfam_tf import files
from tests.support.texts import DATA

TABLE = Path(__file__).with_name("data_sources.tsv")
_TIMEOUT = 60  # seconds without data


@dataclass(frozen=True)
class Source:
    """The source of a file.

    Attributes:
        path: the path in the data folder.
        sha256: the digest of the stored file, in hexadecimal; empty if it is not known.
        url: the file or an archive that contains it; without "://", another file of the data
            folder.
        part: the file's name in the archive, or "=" and one of ``DERIVED``; empty for the whole
            file.
    """

    path: str
    sha256: str
    url: str
    part: str = ""


def read_table(path: Path = TABLE) -> list[Source]:
    """Reads a table with one source per line."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [Source(**row) for row in csv.DictReader(stream, delimiter="\t")]


# Derived files ----------------------------------------------------------------


def _mrpc(wanted: Callable[[bool], bool]) -> Callable[[Path, Path], bytes]:
    """GLUE's split of MRPC's training pairs, by the ids of the dev set in the same folder."""

    def split(file: Path, data: Path) -> bytes:
        ids = (data / "glue/MRPC/dev_ids.tsv").read_text("utf-8").splitlines()
        dev = {tuple(line.split("\t")) for line in ids}
        header, *lines = file.read_text("utf-8").splitlines(keepends=True)
        rows = [line.strip().split("\t") for line in lines]
        kept = ["\t".join(row) + "\n" for row in rows if wanted(tuple(row[1:3]) in dev)]
        return (header + "".join(kept)).encode()

    return split


def _mrpc_test(file: Path, data: Path) -> bytes:
    """GLUE's test set of MRPC, which has numbers for labels."""
    rows = [line.strip().split("\t") for line in file.read_text("utf-8").splitlines()[1:]]
    lines = ["\t".join([str(i), *row[1:]]) for i, row in enumerate(rows)]
    return "\n".join(["index\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines, ""]).encode()


def _xnli(language: str) -> Callable[[Path, Path], bytes]:
    """Premise, hypothesis and label of one language's dev set."""

    def select(file: Path, data: Path) -> bytes:
        with zipfile.ZipFile(file) as archive:
            text = archive.read("XNLI-1.0/xnli.dev.tsv").decode("utf-8")
        lines = text.removesuffix("\n").split("\n")
        header, *rows = [line.removesuffix("\r").split("\t") for line in lines]
        columns = [header.index(name) for name in ("sentence1", "sentence2", "gold_label")]
        own = [row for row in rows if row[header.index("language")] == language]
        return "".join("\t".join(row[i] for i in columns) + "\n" for row in own).encode()

    return select


def _tydiqa_english(file: Path, data: Path) -> bytes:
    """The English articles of TyDi QA's gold passages; question ids begin with the language."""
    whole = json.loads(file.read_bytes())
    english = [
        article
        for article in whole["data"]
        if article["paragraphs"][0]["qas"][0]["id"].startswith("english-")
    ]
    return json.dumps({**whole, "data": english}).encode()


def _race_middle(file: Path, data: Path) -> bytes:
    """RACE's archive without the passages for high schools."""
    made = io.BytesIO()
    with tarfile.open(file) as all_, tarfile.open(fileobj=made, mode="w:gz") as middle:
        for member in all_:
            if member.isfile() and "/middle/" in member.name:
                middle.addfile(member, all_.extractfile(member))
    return made.getvalue()


DERIVED: dict[str, Callable[[Path, Path], bytes]] = {
    "mrpc-train": _mrpc(lambda in_dev: not in_dev),
    "mrpc-dev": _mrpc(lambda in_dev: in_dev),
    "mrpc-test": _mrpc_test,
    "tydiqa-english": _tydiqa_english,
    "race-middle": _race_middle,
    **{f"xnli-{code}": _xnli(code) for code in ("en", "fr", "de", "es", "zh", "ar")},
}


# Fetching -------------------------------------------------------------------------------------


def content(source: Source, file: Path, data: Path) -> bytes:
    """The content to store: a download, a file of an archive, or a derived file.

    Args:
        source: the source.
        file: the download.
        data: the data folder, for files derived from several files.
    """
    if not source.part:
        return file.read_bytes()
    if source.part.startswith("="):
        return DERIVED[source.part[1:]](file, data)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            return archive.read(source.part)
    with tarfile.open(file) as archive:
        member = archive.extractfile(source.part)
        if member is None:
            raise KeyError(f"{source.part} is not a file")
        return member.read()


def fetch(sources: Iterable[Source], data: Path) -> list[str]:
    """Stores the missing files.

    Args:
        sources: the sources; files come before those derived from them.
        data: the data folder.

    Returns:
        The errors, one line per file.
    """
    record = data / "sha256.json"
    known = json.loads(record.read_text("utf-8")) if record.is_file() else {}
    problems, downloads = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        for source in sources:
            path = data / source.path
            if path.exists():
                continue
            try:
                if "://" not in source.url:
                    downloads[source.url] = data / source.url
                elif source.url not in downloads:
                    downloads[source.url] = _download(source.url, Path(scratch))
                made = content(source, downloads[source.url], data)
            except (OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
                problems.append(f"{source.path}: {type(error).__name__}: {error} ({source.url})")
                continue
            digest = hashlib.sha256(made).hexdigest()
            expected = source.sha256 or known.get(source.path, digest)
            if digest != expected:
                problems.append(f"{source.path}: its SHA-256 is {digest}, not {expected}")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, made)
            print(f"{source.path}: {len(made):,} bytes{'' if source.sha256 else f', {digest}'}")
            if not source.sha256:
                known[source.path] = digest
                files.write(record, json.dumps(known, indent=1) + "\n")
    return problems


def _download(url: str, directory: Path) -> Path:
    path = directory / hashlib.sha256(url.encode()).hexdigest()
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as stream, path.open("wb") as target:
        shutil.copyfileobj(stream, target)
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="folders or files of the data folder")
    names = [name.rstrip("/") for name in parser.parse_args(arguments).names] or [""]
    table = read_table()
    wanted = [s for s in table if any(f"{s.path}/".startswith(f"{n}/" if n else "") for n in names)]
    if not wanted:
        parser.error(f"{TABLE.name} has nothing under {', '.join(names)}")
    problems = fetch(wanted, DATA)
    print("\n".join(problems), file=sys.stderr)
    print(f"{len(wanted) - len(problems)} of {len(wanted)} files are in {DATA}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
