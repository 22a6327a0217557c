"""Text, JSON and YAML files that may be damaged, or crafted to exhaust memory or time.

Every failure to read a file is a ``ValueError``, or a subclass that the caller chooses, that names
the file, the problem and the remedy.
"""

import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import yaml

from bertfam_tf.names import truncated

# The largest published tokenizer files have 35 MB. Parsed JSON needs about 20 times its size.
MAX_BYTES = 64 << 20
# Model Garden's params.yaml files have 10 KB, recipes less; PyYAML parses 100 KB per second.
MAX_YAML_BYTES = 256 << 10
MAX_YAML_DEPTH = 32
# More than binary numbers of 64 bits have.
_MAX_DIGITS = 200
# Published files have fewer than 10. Python's limit of about 1,000 includes the calling functions:
# a function further in cannot print or compare everything that an outer one can parse.
MAX_JSON_DEPTH = 100
# A compressed file may expand to a thousand times its size, in a single line.
MAX_COMPRESSED_LINE = 64 << 20
GZIP = b"\x1f\x8b"
# The first bytes of files that are often passed in place of text.
_BINARY = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\xff\xff\xff\xff": "an Arrow stream",
    b"FEA1": "a Feather file of version 1",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet or document of Microsoft Office",
    b"%PDF-": "a PDF file",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"\x28\xb5\x2f\xfd": "a file compressed by Zstandard",
    b"BZh": "a file compressed by bzip2",
    b"\xfd7zXZ": "a file compressed by xz",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}


def check_regular(file: Path, error: type[ValueError] = ValueError) -> None:
    """Raises ``error`` for a pipe, a device or a directory: reading may block or never end."""
    if file.exists() and not file.is_file():
        raise error(f"{file} is not a file; expected a regular file in its place.")


def read_bytes(file: Path, error: type[ValueError] = ValueError, limit: int = MAX_BYTES) -> bytes:
    """Reads a file.

    Args:
        file: its path.
        error: the type of errors.
        limit: the largest size, in bytes.

    Raises:
        FileNotFoundError: if the file does not exist.
        error: if it cannot be opened, is not a regular file, or is larger than ``limit``.
    """
    try:
        check_regular(file, error)
        try:
            opened = file.open("rb")
        except ValueError as cause:
            raise error(f"{str(file)!r} is not the path of a file: {cause}.") from cause
        with opened as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise error(
                    f"{file} has {size:,} bytes; expected at most {limit:,} for this kind of file. "
                    "Is it a different file with this name?"
                )
            return stream.read()
    except FileNotFoundError:
        raise
    except OSError as cause:
        raise error(f"{file} cannot be read: {cause.strerror or cause}.") from cause


@contextmanager
def open_binary(file: Path) -> Iterator[IO[bytes]]:
    """Opens a file to read its bytes, which are decompressed if it is compressed by gzip.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not a regular file; and while reading, if it is truncated or damaged.
    """
    check_regular(file)
    with file.open("rb") as stream:
        if not stream.peek(2).startswith(GZIP):
            yield stream
            return
        try:
            with gzip.GzipFile(fileobj=stream) as decompressed:
                yield cast(IO[bytes], decompressed)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{file} cannot be decompressed; it may be truncated or damaged: "
                f"{truncated(error)}."
            ) from error


def is_compressed(file: Path) -> bool:
    """Returns whether a file is compressed by gzip."""
    with file.open("rb") as stream:
        return stream.read(2) == GZIP


def byte_lines(file: Path) -> Iterator[bytes]:
    """Yields the lines of a text file, with their ends; gzip is decompressed as it is read.

    The byte order mark of UTF-8 is removed.

    Raises:
        FileNotFoundError, ValueError: as ``open_binary``; and for a file of a binary format.
    """
    with open_binary(file) as stream:
        limit = -1 if isinstance(stream, io.BufferedReader) else MAX_COMPRESSED_LINE
        line = stream.readline(limit)
        kind = next((kind for start, kind in _BINARY.items() if line.startswith(start)), None)
        if kind is not None:
            raise ValueError(f"{file} is {kind}, expected text in UTF-8.")
        line = line.removeprefix(b"\xef\xbb\xbf") or stream.readline(limit)
        while line:
            if len(line) == limit:
                raise ValueError(
                    f"{file} has a line of more than {limit >> 20} MiB; compressed files may not."
                )
            yield line
            line = stream.readline(limit)


def not_utf8(location: str, data: bytes) -> str:
    """Returns the error message for bytes that are not UTF-8; "" if they are.

    Args:
        location: the place of the bytes, such as ``train.csv: line 3``.
        data: the bytes.
    """
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")[-20:]
        return (
            f"{location} is not UTF-8: the byte 0x{data[error.start]:02x} after {before!r}. "
            "Convert the file, such as with iconv -f WINDOWS-1252 -t UTF-8."
        )
    return ""


def read_text(file: Path, error: type[ValueError] = ValueError, limit: int = MAX_BYTES) -> str:
    """Reads UTF-8 text without the byte order mark. Arguments and errors as ``read_bytes``."""
    data = read_bytes(file, error, limit)
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        raise error(
            f"{file}: line {line} contains the byte 0x{data[cause.start]:02x}, expected UTF-8"
        ) from cause


def read_json(file: Path, error: type[ValueError] = ValueError) -> Any:
    """Reads a JSON file. Arguments as for ``read_bytes``.

    Raises:
        error: as for ``read_bytes``; or if the content is not UTF-8 JSON, is nested too deeply, or
            contains a key twice.
    """
    data = read_bytes(file, error)
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError as cause:
        raise error(f"{file} is not JSON: it is nested too deeply.") from cause
    except (ValueError, MemoryError) as cause:
        raise error(
            f"{file} is not JSON in UTF-8; it may be truncated or damaged: {truncated(cause)}"
        ) from cause
    if not is_shallow(content):
        raise error(f"{file} is nested more than {MAX_JSON_DEPTH} levels deep.")
    return content


def read_object(file: Path, error: type[ValueError] = ValueError) -> dict[str, Any]:
    """Reads a JSON object. Arguments and errors as for ``read_json``; also for other values."""
    content = read_json(file, error)
    if not isinstance(content, dict):
        raise error(f"{file}: found a {type(content).__name__}, expected a JSON object.")
    return content


def is_shallow(content: Any) -> bool:
    """Returns whether parsed JSON is nested at most ``MAX_JSON_DEPTH`` levels deep."""
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
    return not level


def read_yaml(file: Path, error: type[ValueError] = ValueError) -> Any:
    """Reads a YAML file. Arguments as for ``read_bytes``; errors as for ``parse_yaml``."""
    return parse_yaml(read_text(file, error, MAX_YAML_BYTES), str(file), error)


def parse_yaml(text: str, source: str, error: type[ValueError] = ValueError) -> Any:
    """Parses YAML into values of plain types.

    Args:
        text: the YAML.
        source: the name of the source, for errors.
        error: the type of errors.

    Raises:
        error: if the text is not YAML, contains a key twice, is nested more than ``MAX_YAML_DEPTH``
            levels deep, or contains an alias: a few hundred bytes of aliases can expand to
            gigabytes.
    """
    try:
        return yaml.load(text, _Loader)
    except Exception as cause:  # PyYAML's constructors raise many types of errors
        raise error(f"{source} is not YAML: {truncated(cause)}") from cause


class _Loader(yaml.SafeLoader):
    """Plain values only: no aliases, deep nesting, duplicate keys or integers beyond 64 bits."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self._fail("aliases (*name) are not supported; repeat the value")
        self._depth += 1
        if self._depth > MAX_YAML_DEPTH:
            self._fail(f"it is nested more than {MAX_YAML_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        mapping = super().construct_mapping(node, deep)
        # Fewer keys than nodes: a duplicate. (Merge keys have been replaced by their content.)
        if isinstance(node, yaml.MappingNode) and len(mapping) < len(node.value):
            names = [str(key.value) for key, _ in node.value]
            raise yaml.constructor.ConstructorError(
                None, None, f"found the key {truncated(_repeated(names))!r} twice", node.start_mark
            )
        return mapping

    def construct_yaml_int(self, node: Any) -> int:
        # Numbers to the base 60 (1:30) take time that grows with the square of their length.
        number = super().construct_yaml_int(node) if len(node.value) <= _MAX_DIGITS else 2**64
        # Python does not print hexadecimal numbers of thousands of digits in decimal.
        if not -(2**63) <= number < 2**64:
            raise yaml.constructor.ConstructorError(
                None, None, f"{truncated(node.value, 40)} is beyond 64 bits", node.start_mark
            )
        return number

    def _fail(self, problem: str) -> NoReturn:
        raise yaml.composer.ComposerError(None, None, problem, self.peek_event().start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError(f"the key {truncated(_repeated(key for key, _ in pairs))!r} appears twice")
    return mapping


def _repeated(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]
