"""Mistakes in files of weights and of SentencePiece pieces."""

import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

# Formats of weights ----------------------------------------------------------------------------
from tests.support.mutated_values import EXECUTED, HUGE, ODD, chosen, replaced


def damage_header(file: Path, rng: random.Random, *_: Any) -> str:
    """For safetensors: changes a value of the header, and adapts its length."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    value = json.loads(data[8 : 8 + size])
    path = chosen(value, rng)
    odd = rng.choice([*ODD, *HUGE, [0, 2**40], [10, 5], [-1, 3], "F64", "BOOL", "F8_E4M3", [0, 0]])
    text = json.dumps(replaced(value, path, odd)).encode()
    if rng.random() < 0.2:
        size = rng.choice([0, 1, 2**40, 2**63, len(text) + 100])
    else:
        size = len(text)
    file.write_bytes(struct.pack("<Q", size) + text + data[8 + struct.unpack("<Q", data[:8])[0] :])
    return f"{'.'.join(map(str, path))[:60]} = {repr(odd)[:40]}"


def damage_tensor(file: Path, rng: random.Random, *_: Any) -> str:
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


def damage_h5(file: Path, rng: random.Random, base: Path, secret: Path) -> str:
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


def damage_torch(file: Path, rng: random.Random, *_: Any) -> str:
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


def damage_pickle(file: Path, rng: random.Random, *_: Any) -> str:
    kind = rng.choice(["code", "patch", "value", "opcode", "again"])
    data = file.read_bytes()
    if kind in ("code", "value"):
        state = pickle.loads(data)
        key = rng.choice(sorted(state))
        state[key] = _Runs() if kind == "code" else rng.choice(ODD)
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


def damage_sentencepiece(file: Path, rng: random.Random, *_: Any) -> str:
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
