"""The mutations of ``tools.fuzz_files``: from a flipped byte to a vocabulary of 20 million entries.

``mutate`` chooses one of a directory's files and one of the mutations for its format. The same
random numbers give the same changes.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.mutated_values import DEEP, HUGE, ODD, chosen, paths_of, replaced
from tests.support.weight_mutations import (
    damage_h5,
    damage_header,
    damage_index,
    damage_pickle,
    damage_sentencepiece,
    damage_tensor,
    damage_torch,
)

# Content of a file outside of every case's directory.
SECRET = b"a secret of the user's "


def mutate(directory: Path, base: Path, secret: Path, rng: random.Random) -> str:
    """Changes one file of a directory and returns a description.

    Args:
        directory: the directory to change.
        base: the valid directories, for swapping files.
        secret: a file outside of the directory, as the target of links.
        rng: the random number generator.
    """
    file = rng.choice(sorted(file for file in directory.rglob("*") if file.is_file()))
    ways: list[Callable] = [*_ANY]
    for suffix, own in _WAYS.items():
        if file.name.endswith(suffix) or suffix in file.suffixes:
            ways = [*own * 3, *_ANY]
    way = rng.choice(ways)
    try:
        done = way(file, rng, base, secret) or ""
    except (LookupError, TypeError, ValueError, OSError) as error:
        done = f"(unchanged: {type(error).__name__}: {error})"[:120]
    if (directory / "bertfam.json").is_file() and rng.random() < 0.7:
        _sign(directory)
    return f"{file.relative_to(directory)}: {way.__name__.strip('_')} {done}".strip()


def _sign(directory: Path) -> None:
    """Updates the digests of the files of a saved task."""
    import hashlib

    file = directory / "bertfam.json"
    try:
        stored = json.loads(file.read_text("utf-8"))
        for name in stored["sha256"]:
            if not (directory / name).is_file():  # reading a pipe would block
                continue
            content = (directory / name).read_bytes()
            stored["sha256"][name] = hashlib.sha256(content).hexdigest()
        file.write_text(json.dumps(stored), "utf-8")
    except (ValueError, TypeError, KeyError, OSError, RecursionError):
        pass


# Any file --------------------------------------------------------------------------------------


def _flip(file: Path, rng: random.Random, *_: Any) -> str:
    data = bytearray(file.read_bytes())
    count = rng.choice([1, 1, 4, 32]) if data else 0
    for _ in range(count):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"{count} bits"


def _flip_front(file: Path, rng: random.Random, *_: Any) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(4):
        data[rng.randrange(min(len(data), 256))] = rng.randrange(256)
    file.write_bytes(data)


def _cut(file: Path, rng: random.Random, *_: Any) -> str:
    data = file.read_bytes()
    keep = rng.randrange(len(data) + 1)
    file.write_bytes(data[:keep])
    return f"to {keep} of {len(data)}"


def _insert(file: Path, rng: random.Random, *_: Any) -> None:
    data = file.read_bytes()
    at = rng.randrange(len(data) + 1)
    file.write_bytes(data[:at] + rng.randbytes(rng.choice([1, 8, 1000])) + data[at:])


def _zero(file: Path, rng: random.Random, *_: Any) -> None:
    data = bytearray(file.read_bytes())
    at, size = rng.randrange(len(data) + 1), rng.choice([4, 64, 4096])
    data[at : at + size] = bytes(len(data[at : at + size]))
    file.write_bytes(data)


def _empty(file: Path, *_: Any) -> None:
    file.write_bytes(b"")


def _remove(file: Path, *_: Any) -> None:
    file.unlink()


def _make_directory(file: Path, *_: Any) -> None:
    file.unlink()
    file.mkdir()


def _link_out(file: Path, rng: random.Random, base: Path, secret: Path) -> None:
    file.unlink()
    file.symlink_to(secret)


def _link_around(file: Path, *_: Any) -> None:
    file.unlink()
    file.symlink_to(file.name)


def _pipe(file: Path, *_: Any) -> None:
    file.unlink()
    os.mkfifo(file)


def _swap(file: Path, rng: random.Random, base: Path, secret: Path) -> str:
    others = [f for f in base.rglob("*") if f.is_file() and f.suffix == file.suffix]
    other = rng.choice(sorted(others)) if others and rng.random() < 0.7 else None
    other = other or rng.choice(sorted(f for f in base.rglob("*") if f.is_file()))
    shutil.copyfile(other, file)
    return f"for {other.relative_to(base)}"


_ANY = [
    *(_flip, _flip, _cut, _insert, _zero, _empty, _remove, _make_directory),
    *(_link_out, _link_around, _pipe, _swap),
]

# JSON and YAML ---------------------------------------------------------------------------------


def _json_value(file: Path, rng: random.Random, *_: Any) -> str:
    value = json.loads(file.read_text("utf-8"))
    path, odd = chosen(value, rng), rng.choice(ODD)
    file.write_text(json.dumps(replaced(value, path, odd)), "utf-8")
    return f"{'.'.join(map(str, path))[:60]} = {repr(odd)[:40]}"


def _json_size(file: Path, rng: random.Random, *_: Any) -> str:
    """Replaces numbers by huge ones."""
    value = json.loads(file.read_text("utf-8"))
    numbers = [p for p in paths_of(value) if type(_at(value, p)) in (int, float)]
    if not numbers:
        return _json_value(file, rng)
    path, huge = rng.choice(numbers), rng.choice([*HUGE, 0, -1, float("nan"), 1e300])
    file.write_text(json.dumps(replaced(value, path, huge)), "utf-8")
    return f"{'.'.join(map(str, path))[:60]} = {huge}"


def _at(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def _json_remove(file: Path, rng: random.Random, *_: Any) -> str:
    value = json.loads(file.read_text("utf-8"))
    path = chosen(value, rng)
    parent = _at(value, path[:-1])
    del parent[path[-1]]
    file.write_text(json.dumps(value), "utf-8")
    return ".".join(map(str, path))[:60]


def _json_twice(file: Path, rng: random.Random, *_: Any) -> str:
    text = file.read_text("utf-8").strip()
    key = rng.choice(list(json.loads(text)))
    file.write_text(f"{text[:-1]}, {json.dumps(key)}: {json.dumps(rng.choice(ODD))}}}", "utf-8")
    return key[:40]


def _json_deep(file: Path, rng: random.Random, *_: Any) -> None:
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    deep = opening * DEEP + "1" + closing * DEEP
    value = json.loads(file.read_text("utf-8"))
    path = chosen(value, rng)
    mark = "a mark that nothing has"
    text = json.dumps(replaced(value, path, mark))
    file.write_text(text.replace(json.dumps(mark), deep), "utf-8")


def _json_many(file: Path, rng: random.Random, *_: Any) -> None:
    """Makes it megabytes long."""
    value = json.loads(file.read_text("utf-8"))
    many = rng.choice([[[]] * 500_000, {str(i): i for i in range(300_000)}, "a" * 4_000_000])
    file.write_text(json.dumps(replaced(value, chosen(value, rng), many)), "utf-8")


_JSON = [_json_value, _json_value, _json_value, _json_size, _json_remove, _json_twice]
_JSON += [_json_deep, _json_many]
_YAML_TEXTS = (
    "&a [*a, *a]", "&a {b: *a}", "!!python/object/apply:os.system ['touch executed']",
    "[" * 5000, "{a: " * 5000, "1:" * 3000 + "1", "!!int ''", "!!timestamp x", "!!float {}",
    "0x" + "f" * 5000, "9" * 5000, "2001-99-99", ".nan", "-.inf", "1e400", "? [a]\n: b",
    "!!binary x",
    "~", "''", "- a", "|\n  x", "!!set {a, b}", "!!omap [a: 1]", "yes", "{}", "[]", "\x00", "*b",
)  # fmt: skip


def _yaml_bomb(file: Path, rng: random.Random, *_: Any) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    text = file.read_text("utf-8")
    place = rng.randrange(3)
    if place == 0:
        text = "\n".join(lines) + "\n" + text
    else:
        keys = [line for line in text.split("\n") if ": " in line] or [text]
        line = rng.choice(keys)
        text = "\n".join(lines) + "\n" + text.replace(line, line.partition(": ")[0] + ": *a8", 1)
    file.write_text(text, "utf-8")


def _yaml_value(file: Path, rng: random.Random, *_: Any) -> str:
    lines = file.read_text("utf-8").split("\n")
    keyed = [i for i, line in enumerate(lines) if ":" in line and not line.startswith("#")]
    i, odd = rng.choice(keyed), rng.choice(_YAML_TEXTS)
    lines[i] = lines[i].partition(":")[0] + ": " + odd
    file.write_text("\n".join(lines), "utf-8")
    return f"{lines[i][:40]!r}"


def _yaml_number(file: Path, rng: random.Random, *_: Any) -> str:
    lines = file.read_text("utf-8").split("\n")
    keyed = [i for i, line in enumerate(lines) if ": " in line and not line.startswith("#")]
    i = rng.choice(keyed)
    lines[i] = lines[i].partition(": ")[0] + f": {rng.choice((*HUGE, 0, -1))}"
    file.write_text("\n".join(lines), "utf-8")
    return f"{lines[i][:40]!r}"


# Lists of pieces -------------------------------------------------------------------------------


def _lines(file: Path, rng: random.Random, *_: Any) -> str:
    lines = file.read_bytes().split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.choice("twice less blank long nul bytes swap space return kelvin".split())
    if kind == "twice":
        lines.insert(i, lines[j])
    elif kind == "less":
        del lines[i]
    elif kind == "swap":
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines[i] = {
            "blank": b"", "long": b"ab" * 500_000, "nul": b"a\0b", "bytes": b"\xff\xfe",
            "space": b" a b c ", "return": b"a\rb\x85c", "kelvin": b"<" + b"k" * 40 + b">",
        }[kind]  # fmt: skip
    file.write_bytes(b"\n".join(lines))
    return kind


# By the end of a file name or one of its suffixes; the last match is used.
_WAYS: dict[str, list[Callable]] = {
    ".json": _JSON,
    ".yaml": [_yaml_value, _yaml_value, _yaml_number, _yaml_bomb],
    ".txt": [_lines],
    ".csv": [_lines],
    ".jsonl": [_lines],
    "codes_x": [_lines],
    "vocab_x": [_lines],
    ".safetensors": [damage_header, damage_tensor, _flip_front],
    ".h5": [damage_h5, damage_h5, _flip_front],
    ".index": [damage_index, damage_index, _flip],
    ".bin": [damage_torch, damage_torch, _flip],
    ".pkl": [damage_pickle, damage_pickle, _flip],
    ".model": [damage_sentencepiece, damage_sentencepiece, _flip_front],
}
