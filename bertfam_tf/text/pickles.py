"""Reads plain values from a pickle without running it.

A pickle is a program. Python's unpickler runs it with any class that it names, and the program can
change even container classes for the whole process. This interpreter only executes operations for
text, numbers and containers; all others do nothing.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any

_MARK = object()
_COUNTERS = ("collections Counter", "collections OrderedDict")


class _Opaque:
    """Replaces everything except text, numbers and containers."""


_OPAQUE = _Opaque()
_CONSTANTS = {
    "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (),
}  # fmt: skip
# Operations whose argument, as pickletools decodes it, is the value.
_VALUES = frozenset(
    """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 STRING BINSTRING SHORT_BINSTRING
    BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    """.split()
)
_STORES = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_FETCHES = frozenset(("GET", "BINGET", "LONG_BINGET"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SILENT = frozenset(("PROTO", "FRAME"))


def read(data: bytes) -> Any:
    """Returns the value of a pickle: text, bytes, numbers, lists, tuples, dicts with text as keys.

    Counters and ordered dicts become dicts; other keys are left out, and objects of any other class
    become opaque objects.

    Raises:
        ValueError, IndexError, KeyError, TypeError, AttributeError: the data is not a pickle, or
            its operations are inconsistent.
    """
    machine = _Machine()
    for operation, argument, _ in pickletools.genops(io.BytesIO(data)):
        if operation.name == "STOP":
            return machine.stack.pop()
        machine.step(operation.name, argument)
    raise ValueError("it is truncated.")


class _Machine:
    """The unpickler's stack and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Executes one operation."""
        push, pop = self.stack.append, self.stack.pop
        if name in _VALUES:
            push(argument)
        elif name in _FETCHES:
            push(self.memo[int(argument)])
        elif name in _STORES:
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in _CONSTANTS:
            push(_CONSTANTS[name])
        elif name in _SILENT:
            pass
        elif name == "MARK":
            push(_MARK)
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            push([] if name == "EMPTY_LIST" else {})
        elif name in ("LIST", "TUPLE"):
            items = self.since_mark()
            push(items if name == "LIST" else tuple(items))
        elif name == "DICT":
            content: dict[str, Any] = {}
            _set(content, self.since_mark())
            push(content)
        elif name in _TUPLES:
            items = [pop() for _ in range(_TUPLES[name])]
            push(tuple(reversed(items)))
        elif name in ("APPEND", "APPENDS"):
            items = [pop()] if name == "APPEND" else self.since_mark()
            if isinstance(self.stack[-1], list):
                self.stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [pop(), pop()][::-1] if name == "SETITEM" else self.since_mark()
            if isinstance(self.stack[-1], dict):
                _set(self.stack[-1], items)
        elif name == "POP":
            pop()
        elif name == "POP_MARK":
            self.since_mark()
        elif name == "DUP":
            push(self.stack[-1])
        else:
            self.opaque(name, argument)

    def opaque(self, name: str, argument: Any) -> None:
        """Executes an operation that refers to code or objects; nothing is imported or called."""
        push, pop = self.stack.append, self.stack.pop
        if name == "GLOBAL":
            push(_Global(argument))
        elif name == "STACK_GLOBAL":
            name, module = pop(), pop()
            is_global = isinstance(name, str) and isinstance(module, str)
            push(_Global(f"{module} {name}") if is_global else _OPAQUE)
        elif name == "REDUCE":
            arguments, function = pop(), pop()
            counter = isinstance(function, _Global) and function.name in _COUNTERS
            push(_dict(arguments) if counter else _OPAQUE)
        elif name in ("NEWOBJ", "NEWOBJ_EX"):
            for _ in range(2 if name == "NEWOBJ" else 3):
                pop()
            push(_OPAQUE)
        elif name in ("OBJ", "INST", "FROZENSET"):
            self.since_mark()
            push(_OPAQUE)
        elif name == "BUILD":
            pop()
        elif name == "EMPTY_SET":
            push(_OPAQUE)
        elif name == "ADDITEMS":
            self.since_mark()
        elif name == "BINPERSID":
            pop()
            push(_OPAQUE)
        elif name in ("PERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER"):
            push(_OPAQUE)
        elif name != "READONLY_BUFFER":
            raise ValueError(f"unknown operation {name}.")

    def since_mark(self) -> list[Any]:
        """Pops the last mark and all items above it; returns these."""
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]


class _Global(_Opaque):
    def __init__(self, name: str) -> None:
        self.name = name


def _set(target: dict[str, Any], items: list[Any]) -> None:
    pairs = zip(items[::2], items[1::2], strict=True)
    target.update((key, value) for key, value in pairs if isinstance(key, str))


def _dict(arguments: Any) -> dict[str, Any]:
    """Returns the argument of a Counter or OrderedDict, which is absent, a dict or pairs."""
    content = arguments[0] if arguments else {}
    # Not copied: a few bytes of a pickle could request any number of copies.
    if isinstance(content, dict):
        return content
    result: dict[str, Any] = {}
    for key, value in content:
        _set(result, [key, value])
    return result
