"""The mutations of ``tools.fuzz_files``: from a flipped byte to a vocabulary of 20 million entries.

``mutate`` chooses one of a directory's files and one of the mutations for its format. The same
random numbers give the same changes.
"""

import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

# Content of a file outside of every case's directory; a file of this name proves that code was run.
SECRET = b"a secret of the user's "
EXECUTED = "executed"

_DEEP = 100_000
_ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 1.5, -0.5, 1e308, 1e-300),
    *(255, 10**6, 2 * 10**7, 2**31 - 1, 2**31, 2**63, 10**400, -(2**63)),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "x", "\x00", "\ud800", "🙂", "a" * 5000, "../../etc/passwd", "/etc/passwd", "nan", "1"),
    *([], {}, [[]], [None], [1, 2, 3], {"": {}}, {"a": 1}, [{"content": 1}], ["x"] * 1000),
]
_HUGE = (10**6, 2 * 10**7, 2**31 - 1, 10**12)


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


def _paths(value: Any, at: tuple = ()) -> list[tuple]:
    found = [at]
    pairs: Any = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else pairs:
        found += _paths(inner, (*at, key))
    return found


def _replaced(value: Any, path: tuple, new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _replaced(copy[path[0]], path[1:], new)
    return copy


def _chosen(value: Any, rng: random.Random) -> tuple:
    # Chosen by level, otherwise most cases would be entries of a vocabulary.
    paths = [path for path in _paths(value) if path]
    depth = rng.choice(sorted({len(path) for path in paths}))
    return rng.choice([path for path in paths if len(path) == depth])


def _json_value(file: Path, rng: random.Random, *_: Any) -> str:
    value = json.loads(file.read_text("utf-8"))
    path, odd = _chosen(value, rng), rng.choice(_ODD)
    file.write_text(json.dumps(_replaced(value, path, odd)), "utf-8")
    return f"{'.'.join(map(str, path))[:60]} = {repr(odd)[:40]}"


def _json_size(file: Path, rng: random.Random, *_: Any) -> str:
    """Replaces numbers by huge ones."""
    value = json.loads(file.read_text("utf-8"))
    numbers = [p for p in _paths(value) if type(_at(value, p)) in (int, float)]
    if not numbers:
        return _json_value(file, rng)
    path, huge = rng.choice(numbers), rng.choice([*_HUGE, 0, -1, float("nan"), 1e300])
    file.write_text(json.dumps(_replaced(value, path, huge)), "utf-8")
    return f"{'.'.join(map(str, path))[:60]} = {huge}"


def _at(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def _json_remove(file: Path, rng: random.Random, *_: Any) -> str:
    value = json.loads(file.read_text("utf-8"))
    path = _chosen(value, rng)
    parent = _at(value, path[:-1])
    del parent[path[-1]]
    file.write_text(json.dumps(value), "utf-8")
    return ".".join(map(str, path))[:60]


def _json_twice(file: Path, rng: random.Random, *_: Any) -> str:
    text = file.read_text("utf-8").strip()
    key = rng.choice(list(json.loads(text)))
    file.write_text(f"{text[:-1]}, {json.dumps(key)}: {json.dumps(rng.choice(_ODD))}}}", "utf-8")
    return key[:40]


def _json_deep(file: Path, rng: random.Random, *_: Any) -> None:
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    deep = opening * _DEEP + "1" + closing * _DEEP
    value = json.loads(file.read_text("utf-8"))
    path = _chosen(value, rng)
    mark = "a mark that nothing has"
    text = json.dumps(_replaced(value, path, mark))
    file.write_text(text.replace(json.dumps(mark), deep), "utf-8")


def _json_many(file: Path, rng: random.Random, *_: Any) -> None:
    """Makes it megabytes long."""
    value = json.loads(file.read_text("utf-8"))
    many = rng.choice([[[]] * 500_000, {str(i): i for i in range(300_000)}, "a" * 4_000_000])
    file.write_text(json.dumps(_replaced(value, _chosen(value, rng), many)), "utf-8")


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
    lines[i] = lines[i].partition(": ")[0] + f": {rng.choice((*_HUGE, 0, -1))}"
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


# Formats of weights ----------------------------------------------------------------------------


def _header(file: Path, rng: random.Random, *_: Any) -> str:
    """For safetensors: changes a value of the header, and adapts its length."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    value = json.loads(data[8 : 8 + size])
    path = _chosen(value, rng)
    odd = rng.choice(
        [*_ODD, *_HUGE, [0, 2**40], [10, 5], [-1, 3], "F64", "BOOL", "F8_E4M3", [0, 0]]
    )
    text = json.dumps(_replaced(value, path, odd)).encode()
    if rng.random() < 0.2:
        size = rng.choice([0, 1, 2**40, 2**63, len(text) + 100])
    else:
        size = len(text)
    file.write_bytes(struct.pack("<Q", size) + text + data[8 + struct.unpack("<Q", data[:8])[0] :])
    return f"{'.'.join(map(str, path))[:60]} = {repr(odd)[:40]}"


def _tensor(file: Path, rng: random.Random, *_: Any) -> str:
    """For safetensors: another valid shape, type or value."""
    from safetensors.numpy import load_file, save_file

    tensors = dict(load_file(file))
    name = rng.choice(sorted(tensors))
    kind, new = rng.choice(sorted(_TENSORS.items()))
    tensors[name] = new(tensors[name])
    save_file(tensors, file)
    return f"{name}: {kind}"


_TENSORS: dict[str, Callable] = {
    "scalar": lambda a: np.array(1.0, np.float32),
    "no elements": lambda a: np.zeros((2 * 10**7, 0), np.float32),
    "no rows": lambda a: a[:0],
    "NaN": lambda a: a * np.float32("nan"),
    "integers": lambda a: np.ones(a.shape, np.int8),
    "booleans": lambda a: np.ones(a.shape, bool),
    "complex": lambda a: a.astype(np.float64),
    "longer": lambda a: np.concatenate([a, a]),
    "deeper": lambda a: a[..., None, None],
    "turned": lambda a: np.ascontiguousarray(a.T),
    "flat": lambda a: a.reshape(-1),
}


def _h5(file: Path, rng: random.Random, base: Path, secret: Path) -> str:
    with h5py.File(file, "r+") as opened:
        names: list[str] = []
        opened.visititems(
            lambda n, item: names.append(n) if isinstance(item, h5py.Dataset) else None
        )
        name = rng.choice(names)
        old = opened[name][()]
        del opened[name]
        kind = rng.choice(sorted(_H5))
        _H5[kind](opened, name, old, secret)
    return f"{name}: {kind}"


def _external(h5: h5py.File, name: str, old: np.ndarray, secret: Path) -> None:
    external = [(str(secret), 0, old.nbytes)]
    h5.create_dataset(name, old.shape, old.dtype, external=external)


def _virtual(h5: h5py.File, name: str, old: np.ndarray, secret: Path) -> None:
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource(str(secret), "x", old.shape)
    h5.create_virtual_dataset(name, layout)


def _set_h5(name: str, value: Any) -> Callable:
    def change(h5: h5py.File, path: str, old: np.ndarray, secret: Path) -> None:
        h5[path] = value(h5, path, old, secret) if callable(value) else value

    change.__name__ = name
    return change


_H5: dict[str, Callable] = {
    "external": _external,
    "virtual": _virtual,
    "external link": _set_h5("", lambda h5, p, old, s: h5py.ExternalLink(str(s), "/x")),
    "soft link": _set_h5("", h5py.SoftLink("/nowhere")),
    "soft link around": _set_h5("", lambda h5, p, old, s: h5py.SoftLink(f"/{p}")),
    "hard link around": _set_h5("", lambda h5, p, old, s: h5["/"]),
    "scalar": _set_h5("", 1.0),
    "text": _set_h5("", "text"),
    "no space": _set_h5("", h5py.Empty("f4")),
    "never stored": lambda h5, p, old, s: h5.create_dataset(
        p, (2 * 10**7, 64), "f4", chunks=(1024, 64)
    ),
    "compressed": lambda h5, p, old, s: h5.create_dataset(
        p, data=np.zeros((4 * 10**6, 4), "f4"), compression="gzip", chunks=(10**6, 4)
    ),
    "other type": lambda h5, p, old, s: h5.create_dataset(p, data=old.astype("i4")),
    "compound": lambda h5, p, old, s: h5.create_dataset(p, old.shape, [("a", "f4"), ("b", "i8")]),
    "other shape": lambda h5, p, old, s: h5.create_dataset(p, data=old.reshape(-1)),
    "NaN": lambda h5, p, old, s: h5.create_dataset(p, data=old * np.nan),
}


def damage_index(file: Path, rng: random.Random, *_: Any) -> str:
    """For TensorFlow checkpoints: changes bytes of the table, and updates its checksums."""
    data = bytearray(file.read_bytes())
    blocks = _blocks(data)
    start, size = blocks[0]
    count = rng.choice([1, 1, 2, 8])
    for _ in range(count):
        data[start + rng.randrange(size)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    for start, size in blocks:
        crc = _crc32c(bytes(data[start : start + size + 1]))
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        data[start + size + 1 : start + size + 5] = struct.pack("<I", masked)
    file.write_bytes(data)
    return f"{count} bytes"


def _blocks(data: bytes) -> list[tuple[int, int]]:
    """Offsets of the first blocks of a table, before its footer."""
    footer = data[-48:]
    numbers, at = [], 0
    while len(numbers) < 4:
        value = shift = 0
        while True:
            byte = footer[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        numbers.append(value)
    meta, meta_size, index, index_size = numbers
    return [(0, meta - 5), (meta, meta_size), (index, index_size)]


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, (EXECUTED,)


def _torch(file: Path, rng: random.Random, *_: Any) -> str:
    import torch

    kind = rng.choice(["code", "stretched", "list", "other names", "quantized", "sparse", "inside"])
    if kind == "inside":
        parts = {}
        with zipfile.ZipFile(file) as opened:
            parts = {name: opened.read(name) for name in opened.namelist()}
        name = rng.choice(sorted(name for name in parts if name.endswith(("data.pkl", "/0"))))
        content = bytearray(parts[name])
        for _ in range(4):
            content[rng.randrange(len(content))] = rng.randrange(256)
        with zipfile.ZipFile(file, "w") as opened:
            for each, value in {**parts, name: bytes(content)}.items():
                opened.writestr(each, value)
        return kind
    tensors: Any = torch.load(file, weights_only=True)
    name = rng.choice(sorted(tensors))
    if kind == "code":
        tensors[name] = _Runs()
    elif kind == "stretched":
        tensors[name] = torch.zeros(1).expand(2 * 10**7, 64)
    elif kind == "quantized":
        tensors[name] = tensors[name].to(torch.int8)
    elif kind == "sparse":
        tensors[name] = tensors[name].to_sparse()
    elif kind == "other names":
        tensors[1] = tensors.pop(name)
    else:
        tensors = list(tensors.values())
    torch.save(tensors, file)
    return kind


def _pickle(file: Path, rng: random.Random, *_: Any) -> str:
    kind = rng.choice(["code", "patch", "value", "opcode", "again"])
    data = file.read_bytes()
    if kind in ("code", "value"):
        state = pickle.loads(data)
        key = rng.choice(sorted(state))
        state[key] = _Runs() if kind == "code" else rng.choice(_ODD)
        file.write_bytes(pickle.dumps(state, rng.randrange(5)))
    elif kind == "patch":  # of a class that readers may return
        state = b"}(X\x07\x00\x00\x00__add__cos\nmkdir\nu"
        file.write_bytes(b"\x80\x02ccollections\nCounter\n" + state + b"b0" + data[2:])
    elif kind == "again":  # copies of copies
        copies = b"(ccollections\nCounter\nh\x00\x85R" * 10**5
        file.write_bytes(b"\x80\x02}q\x00" + copies + data[2:])
    else:
        changed = bytearray(data)
        changed[rng.randrange(len(data))] = rng.choice(
            b"().NIJKLMRSTUVX]abcdeghijlopqrstu}\x80\x81\x93"
        )
        file.write_bytes(changed)
    return kind


def _sentencepiece(file: Path, rng: random.Random, *_: Any) -> str:
    from sentencepiece import sentencepiece_model_pb2 as model_pb

    proto = model_pb.ModelProto()
    proto.ParseFromString(file.read_bytes())
    piece = proto.pieces[rng.randrange(len(proto.pieces))]
    rules = bytearray(proto.normalizer_spec.precompiled_charsmap)
    kind = rng.choice(
        "circle bomb units score type piece many fields rules strings user sizes".split()
    )
    if kind in ("circle", "units"):
        size = int.from_bytes(rules[:4], "little") // 4
        for _ in range(1 if kind == "circle" else 64):
            at, to = (rng.randrange(size) for _ in range(2))
            old = int.from_bytes(rules[4 + 4 * at : 8 + 4 * at], "little")
            new = old & 0x1FF | (at ^ to) << 10 if kind == "circle" else rng.getrandbits(32)
            rules[4 + 4 * at : 8 + 4 * at] = new.to_bytes(4, "little")
        proto.normalizer_spec.precompiled_charsmap = bytes(rules)
    elif kind == "bomb":
        proto.normalizer_spec.precompiled_charsmap = trie_bomb(rng.choice([0, 40]))
    elif kind == "strings":
        proto.normalizer_spec.precompiled_charsmap = bytes(rules[: -rng.randrange(1, 3000)])
    elif kind == "rules":
        proto.normalizer_spec.precompiled_charsmap = rng.randbytes(rng.choice([3, 400, 4004]))
    elif kind == "score":
        piece.score = rng.choice([float("nan"), float("inf"), -1e38, 1e38])
    elif kind == "type":
        piece.type = rng.randrange(1, 7)
    elif kind == "piece":
        piece.piece = rng.choice(["", "\x00", "▁", " ", "a" * 10**5, "<" + "k" * 40 + ">", "½"])
    elif kind == "many":
        for i in range(50_000):
            proto.pieces.add(piece=f"p{i}", score=-9.0, type=1)
    elif kind == "user":
        for i in range(5_000):
            proto.pieces.add(piece=f"½{i}ﬁ", score=0.0, type=4)
    elif kind == "sizes":
        proto.trainer_spec.vocab_size = rng.choice([-1, 0, 2**31 - 1])
        proto.trainer_spec.unk_id = rng.choice([-5, 10**9])
    else:
        proto.normalizer_spec.add_dummy_prefix = rng.random() < 0.5
        proto.normalizer_spec.escape_whitespaces = rng.random() < 0.5
        proto.normalizer_spec.remove_extra_whitespaces = rng.random() < 0.5
        proto.trainer_spec.model_type = rng.randrange(1, 5)
    file.write_bytes(proto.SerializeToString())
    return kind


def trie_bomb(levels: int) -> bytes:
    """Normalization rules in which the two children of each node share their children: 2^levels
    keys, or for 0 levels a node that is its own child."""
    page = 256
    units = np.zeros((levels + 2) * page, np.uint32)
    units[0] = page << 10
    for level in range(1, levels + 2):
        base = level * page
        target = base + page if level <= levels else base
        if not levels:
            target = page
        for label in (ord("a"), ord("b")) if levels else (ord("a"),):
            slot = base ^ label
            has_value = 1 << 8 if level > levels else 0
            units[slot] = (slot ^ target) << 10 & 0xFFFFFC00 | has_value | label
    units[(levels + 1) * page] = 1 << 31
    return units.nbytes.to_bytes(4, "little") + units.tobytes() + b"x\0"


# By the end of a file name or one of its suffixes; the last match is used.
_WAYS: dict[str, list[Callable]] = {
    ".json": _JSON,
    ".yaml": [_yaml_value, _yaml_value, _yaml_number, _yaml_bomb],
    ".txt": [_lines],
    ".csv": [_lines],
    ".jsonl": [_lines],
    "codes_x": [_lines],
    "vocab_x": [_lines],
    ".safetensors": [_header, _tensor, _flip_front],
    ".h5": [_h5, _h5, _flip_front],
    ".index": [damage_index, damage_index, _flip],
    ".bin": [_torch, _torch, _flip],
    ".pkl": [_pickle, _pickle, _flip],
    ".model": [_sentencepiece, _sentencepiece, _flip_front],
}
