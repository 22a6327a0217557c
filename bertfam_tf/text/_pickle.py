"""Plain values out of a pickle, which is never run.

A pickle is a program. Python's unpickler runs it with whatever classes it is given, and even those
of harmless containers can be changed by it for the whole process. Here its operations are read one
by one: those of text, numbers and containers make such, and of all others nothing is left.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any

_MARK = object()
_COUNTERS = ("collections Counter", "collections OrderedDict")


class _Opaque:
    """What stands for anything but text, numbers and containers."""


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
    """The value of a pickle: text, bytes, numbers, lists, tuples, and dicts with text for keys.

    Counters and ordered dicts are dicts; other keys, and objects of any other class, are left out
    or stand there as an opaque object.

    Raises:
        ValueError, IndexError, KeyError, TypeError, AttributeError: for what is no pickle, or one
            whose operations do not fit each other.
    """
    machine = _Machine()
    for operation, argument, _ in pickletools.genops(io.BytesIO(data)):
        if operation.name == "STOP":
            return machine.stack.pop()
        machine.step(operation.name, argument)
    raise ValueError("it ends early")


class _Machine:
    """The unpickler's stack and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Does one operation."""
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
            made: dict[str, Any] = {}
            _set(made, self.since_mark())
            push(made)
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
        """Does an operation that names code or makes an object: nothing is looked up or called."""
        push, pop = self.stack.append, self.stack.pop
        if name == "GLOBAL":
            push(_Global(argument))
        elif name == "STACK_GLOBAL":
            name, module = pop(), pop()
            named = isinstance(name, str) and isinstance(module, str)
            push(_Global(f"{module} {name}") if named else _OPAQUE)
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
            raise ValueError(f"the operation {name} is not known")

    def since_mark(self) -> list[Any]:
        """Takes what lies above the last mark off the stack, and the mark."""
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
    """What a Counter or OrderedDict is made of: nothing, a dict, or a list of pairs."""
    given = arguments[0] if arguments else {}
    # Not copied: a few bytes of a pickle could ask for any number of copies.
    if isinstance(given, dict):
        return given
    made: dict[str, Any] = {}
    for key, value in given:
        _set(made, [key, value])
    return made
