"""Text, JSON and YAML files, which may be damaged or made to exhaust whoever reads them.

Every failure to read one is a ``ValueError`` (or the subclass that the caller asks for) that names
the file, says what is wrong with it and what to do.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from bertfam_tf.names import short

# The largest published tokenizer files have 35 MB. Parsed, JSON takes some 20 times its size.
MAX_BYTES = 64 << 20
# Model Garden's params.yaml have 10 KB, recipes less; PyYAML parses 100 KB in a second.
MAX_YAML_BYTES = 256 << 10
MAX_YAML_DEPTH = 32


def read_bytes(file: Path, error: type[ValueError] = ValueError, limit: int = MAX_BYTES) -> bytes:
    """A whole file.

    Args:
        file: its path.
        error: what is raised.
        limit: most bytes that it may have.

    Raises:
        FileNotFoundError: there is no such file.
        error: it cannot be opened, is no regular file, or is larger than ``limit``.
    """
    try:
        # A pipe or device would block, or never end.
        if file.exists() and not file.is_file():
            raise error(f"{file} is not a file; expected a regular file in its place.")
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise error(
                    f"{file} has {size:,} bytes; expected at most {limit:,} of a file of its kind. "
                    "Is it another file under this name?"
                )
            return stream.read()
    except FileNotFoundError:
        raise
    except OSError as cause:
        raise error(f"{file} cannot be read: {cause.strerror or cause}.") from cause


def read_text(file: Path, error: type[ValueError] = ValueError, limit: int = MAX_BYTES) -> str:
    """A UTF-8 file's text without its byte order mark. Arguments and errors as ``read_bytes``."""
    data = read_bytes(file, error, limit)
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        raise error(
            f"{file}: line {line} holds the byte 0x{data[cause.start]:02x}, expected UTF-8"
        ) from cause


def read_json(file: Path, error: type[ValueError] = ValueError) -> Any:
    """What a JSON file holds. Arguments as for ``read_bytes``.

    Raises:
        error: as ``read_bytes`` has it; or the content is not JSON in UTF-8, is nested too deeply,
            or has a key twice.
    """
    data = read_bytes(file, error)
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError as cause:
        raise error(f"{file} is not JSON that can be read: it is nested too deeply.") from cause
    except (ValueError, MemoryError) as cause:
        raise error(
            f"{file} is not JSON in UTF-8; it may be cut off or damaged: {short(cause)}"
        ) from cause


def read_yaml(file: Path, error: type[ValueError] = ValueError) -> Any:
    """What a YAML file holds. Arguments as for ``read_bytes``; errors as for ``parse_yaml``."""
    return parse_yaml(read_text(file, error, MAX_YAML_BYTES), str(file), error)


def parse_yaml(text: str, source: str, error: type[ValueError] = ValueError) -> Any:
    """The value of a YAML text, of plain types.

    Args:
        text: YAML.
        source: what the error names.
        error: what is raised.

    Raises:
        error: the text is not YAML, has a key twice, is nested more than ``MAX_YAML_DEPTH`` deep,
            or has an alias: a few hundred bytes of these stand for gigabytes.
    """
    try:
        return yaml.load(text, _Loader)
    except Exception as cause:  # PyYAML's constructors raise errors of many kinds
        raise error(f"{source} is not YAML that can be read: {short(cause)}") from cause


class _Loader(yaml.SafeLoader):
    """Plain values, no aliases, no deep nesting, no key twice."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self._refuse("aliases (*name) are not supported; write the value out")
        self._depth += 1
        if self._depth > MAX_YAML_DEPTH:
            self._refuse(f"it is nested more than {MAX_YAML_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        mapping = super().construct_mapping(node, deep)
        # A merge key is replaced by what it merges.
        if isinstance(node, yaml.MappingNode) and len(mapping) < len(node.value):
            names = [str(key.value) for key, _ in node.value]
            raise yaml.constructor.ConstructorError(
                None, None, f"found the key {short(_repeated(names))!r} twice", node.start_mark
            )
        return mapping

    def _refuse(self, problem: str) -> NoReturn:
        raise yaml.composer.ComposerError(None, None, problem, self.peek_event().start_mark)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"the key {short(_repeated(key for key, _ in pairs))!r} is there twice")
    return found


def _repeated(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]
