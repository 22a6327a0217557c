"""TensorFlow's C API, as much of it as loading and running a SavedModel takes."""

import contextlib
import ctypes
import functools
import importlib.util
import math
import os
import pathlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import config_pb2

from bertfam_tf.serve.status import Code, ServingError, invalid


class _Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p)]


class _Output(ctypes.Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


_FATAL = 3  # of absl::LogSeverity
_TSTRING_BYTES = 24  # sizeof(TF_TString), part of TensorFlow's stable C ABI
# A message that brings one value may declare any shape to be filled with it.
_MOST_FILLED_BYTES = 64 << 20
_MOST_BYTES_PER_BYTE_SENT = 16  # a string of one character: 2 bytes of a message, 24 in memory

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "TF_NewStatus": (c_void_p, []),
    "TF_DeleteStatus": (None, [c_void_p]),
    "TF_GetCode": (c_int, [c_void_p]),
    "TF_Message": (c_char_p, [c_void_p]),
    "TF_NewBuffer": (POINTER(_Buffer), []),
    "TF_NewBufferFromString": (POINTER(_Buffer), [c_char_p, c_size_t]),
    "TF_DeleteBuffer": (None, [POINTER(_Buffer)]),
    "TF_NewGraph": (c_void_p, []),
    "TF_DeleteGraph": (None, [c_void_p]),
    "TF_GraphOperationByName": (c_void_p, [c_void_p, c_char_p]),
    "TF_OperationNumOutputs": (c_int, [c_void_p]),
    "TF_NewSessionOptions": (c_void_p, []),
    "TF_DeleteSessionOptions": (None, [c_void_p]),
    "TF_LoadSessionFromSavedModel": (
        c_void_p,
        [
            *(c_void_p, POINTER(_Buffer), c_char_p, POINTER(c_char_p), c_int),
            *(c_void_p, POINTER(_Buffer), c_void_p),
        ],
    ),
    "TF_CloseSession": (None, [c_void_p, c_void_p]),
    "TF_DeleteSession": (None, [c_void_p, c_void_p]),
    "TF_SessionRun": (
        None,
        [
            *(c_void_p, POINTER(_Buffer)),
            *(POINTER(_Output), POINTER(c_void_p), c_int),
            *(POINTER(_Output), POINTER(c_void_p), c_int),
            *(POINTER(c_void_p), c_int, POINTER(_Buffer), c_void_p),
        ],
    ),
    "TF_AllocateTensor": (c_void_p, [c_int, POINTER(c_int64), c_int, c_size_t]),
    "TF_TensorFromProto": (None, [POINTER(_Buffer), c_void_p, c_void_p]),
    "TF_DeleteTensor": (None, [c_void_p]),
    "TF_TensorType": (c_int, [c_void_p]),
    "TF_NumDims": (c_int, [c_void_p]),
    "TF_Dim": (c_int64, [c_void_p, c_int]),
    "TF_TensorData": (c_void_p, [c_void_p]),
    "TF_TensorByteSize": (c_size_t, [c_void_p]),
    "TF_StringGetDataPointer": (c_void_p, [c_void_p]),
    "TF_StringGetSize": (c_size_t, [c_void_p]),
}


@functools.cache
def _library() -> ctypes.CDLL:
    """The C library inside the installed TensorFlow, with tensorflow-text's ops registered."""
    found = sorted(pathlib.Path(tf.__file__).parent.glob("libtensorflow_cc.*"))
    if not found:
        raise ServingError(
            Code.UNIMPLEMENTED, "this TensorFlow ships no libtensorflow_cc; serve on Linux or macOS"
        )
    lib = ctypes.CDLL(os.fspath(found[0]))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    # Half of TensorFlow logs through absl, which does not read the variable that the rest reads.
    # A C++ name, outside the C API: a build that lacks it says a little more.
    set_level = getattr(
        lib, "_ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE", None
    )
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    if set_level is not None and level.isdecimal():
        set_level(min(int(level), _FATAL))
    # Only the kernels: `import tensorflow_text` also defines a Keras layer, and so needs Keras.
    text = importlib.util.find_spec("tensorflow_text")
    for folder in (text and text.submodule_search_locations) or []:
        tf.load_library(os.path.join(folder, "python", "ops"))
    return lib


class _XlaSwitch:
    """Holds XLA compilation off while any session runs.

    TensorFlow Serving turns XLA off for the whole process, so a SavedModel with a `jit_compile`d
    function loads and then fails; here it must fail too. This process, however, may also be one
    that trains, so the switch goes back as soon as nobody is inside.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_off = False

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        # C++ names, outside the C API: a build that lacks them serves without the switch.
        lib = _library()
        disable = getattr(lib, "_ZN10tensorflow21DisableXlaCompilationEv", None)
        enable = getattr(lib, "_ZN10tensorflow20EnableXlaCompilationEv", None)
        is_off = getattr(lib, "_ZN10tensorflow20FailOnXlaCompilationEv", None)
        if not (disable and enable and is_off):
            yield
            return
        is_off.restype = ctypes.c_bool
        with self._lock:
            if self._inside == 0:
                self._was_off = is_off()
                disable()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and not self._was_off:
                    enable()


_XLA = _XlaSwitch()


@contextlib.contextmanager
def _status() -> Iterator[int]:
    """A TF_Status for one call; on leaving, anything but OK becomes a ServingError."""
    lib = _library()
    status = lib.TF_NewStatus()
    try:
        yield status
        code = lib.TF_GetCode(status)
        if code:
            raise ServingError(Code(code), lib.TF_Message(status).decode("utf-8", "replace"))
    finally:
        lib.TF_DeleteStatus(status)


@contextlib.contextmanager
def _buffer(content: bytes) -> Iterator[Any]:
    lib = _library()
    buffer = lib.TF_NewBufferFromString(content, len(content))
    try:
        yield buffer
    finally:
        lib.TF_DeleteBuffer(buffer)


def _destroy(session: int, graph: int) -> None:
    with _status() as status:
        _library().TF_DeleteSession(session, status)
    _library().TF_DeleteGraph(graph)


class Feed(NamedTuple):
    """One input of a run: its name in the signature, its tensor's name (`"op:0"`), its value."""

    alias: str
    tensor: str
    value: tensor_pb2.TensorProto


class Session:
    """A SavedModel in a TensorFlow session. Safe to `run` from several threads at once.

    It is closed when the last reference goes, so a run in progress keeps it alive.

    Attributes:
        meta_graph: the serialized MetaGraphDef.
    """

    # The very C++ function that Serving calls (LoadSavedModel), reached through the stable C API:
    # no Python graph import, no shape check against the signature, the same error texts. The v1
    # Python session comes close but needs private methods to avoid its own checks.
    def __init__(self, export_dir: str, tags: Sequence[str]) -> None:
        """Raises ServingError, with TensorFlow's code and text, when the model does not load."""
        lib = _library()
        graph = lib.TF_NewGraph()
        options = lib.TF_NewSessionOptions()
        meta_graph = lib.TF_NewBuffer()
        names = (c_char_p * len(tags))(*[tag.encode() for tag in tags])
        try:
            with _XLA.off(), _status() as status:
                session = lib.TF_LoadSessionFromSavedModel(
                    options, None, os.fsencode(export_dir), names, len(tags), graph, meta_graph,
                    status,
                )  # fmt: skip
            self.meta_graph = ctypes.string_at(meta_graph.contents.data, meta_graph.contents.length)
        except ServingError:
            lib.TF_DeleteGraph(graph)
            raise
        finally:
            lib.TF_DeleteSessionOptions(options)
            lib.TF_DeleteBuffer(meta_graph)
        self._session, self._graph = session, graph
        # Not at exit: a run abandoned at its deadline may still be inside the session then.
        weakref.finalize(self, _destroy, session, graph).atexit = False

    def run(
        self,
        feeds: Sequence[Feed],
        fetches: Sequence[str],
        timeout_ms: int = 0,
    ) -> list[np.ndarray]:
        """Fetches tensors by name (`"op:0"`), as numpy arrays; strings as object arrays of bytes.

        Args:
            feeds: shapes are not checked, dtypes are, both as in Serving.
            fetches: tensor names; an array for each comes back, in this order.
            timeout_ms: after so long the run is cancelled with DEADLINE_EXCEEDED; 0 is never.
        """
        lib = _library()
        with contextlib.ExitStack() as stack:
            inputs = (_Output * len(feeds))()
            values = (c_void_p * len(feeds))()
            for i, feed in enumerate(feeds):
                inputs[i] = self._output(feed.tensor, "FeedInputs: unable to find feed output {}")
                values[i] = stack.enter_context(_tensor(feed))
            outputs = (_Output * len(fetches))()
            for i, name in enumerate(fetches):
                outputs[i] = self._output(name, "FetchOutputs node {}: not found")
            results = (c_void_p * len(fetches))()
            options = config_pb2.RunOptions(timeout_in_ms=timeout_ms).SerializeToString()
            run_options = stack.enter_context(_buffer(options))
            stack.callback(lambda: [lib.TF_DeleteTensor(t) for t in results if t])
            with _XLA.off(), _status() as status:
                lib.TF_SessionRun(
                    self._session, run_options, inputs, values, len(feeds), outputs, results,
                    len(fetches), None, 0, None, status,
                )  # fmt: skip
            return [_array(tensor) for tensor in results if tensor]

    def close(self) -> None:
        """Cancels the runs in progress, and refuses those to come."""
        with _status() as status:
            _library().TF_CloseSession(self._session, status)

    def _output(self, name: str, missing: str) -> _Output:
        operation, _, index = name.partition(":")
        lib = _library()
        found = lib.TF_GraphOperationByName(self._graph, operation.encode())
        if not found or int(index or 0) >= lib.TF_OperationNumOutputs(found):
            raise ServingError(Code.NOT_FOUND, missing.format(name))
        return _Output(found, int(index or 0))


def declares_too_much(proto: tensor_pb2.TensorProto) -> bool:
    """Whether a message declares far more memory than it brings values for.

    TensorFlow would ask for that memory, which stops this process where there is not so much, and
    crashes where 64 bits do not hold its size.
    """
    try:
        dtype = tf.as_dtype(proto.dtype)
    except TypeError:
        return False  # TensorFlow refuses it
    item = _TSTRING_BYTES if dtype == tf.string else dtype.size
    size = item * math.prod(abs(dim.size) for dim in proto.tensor_shape.dim)
    return size > _MOST_FILLED_BYTES and size > _MOST_BYTES_PER_BYTE_SENT * proto.ByteSize()


@contextlib.contextmanager
def _tensor(feed: Feed) -> Iterator[int]:
    """A TF_Tensor with the feed's value, parsed by TensorFlow, which then owns its strings."""
    if declares_too_much(feed.value):
        raise invalid(f"tensor parsing error: {feed.alias}")
    lib = _library()
    tensor = lib.TF_AllocateTensor(tf.uint8.as_datatype_enum, None, 0, 1)
    try:
        try:
            with _buffer(feed.value.SerializeToString()) as buffer, _status() as status:
                lib.TF_TensorFromProto(buffer, tensor, status)
        except ServingError as error:
            raise invalid(f"tensor parsing error: {feed.alias}") from error
        yield tensor
    finally:
        lib.TF_DeleteTensor(tensor)


def _array(tensor: int) -> np.ndarray:
    lib = _library()
    shape = [lib.TF_Dim(tensor, axis) for axis in range(lib.TF_NumDims(tensor))]
    dtype = tf.as_dtype(lib.TF_TensorType(tensor))
    data = lib.TF_TensorData(tensor)
    if dtype == tf.string:
        strings = np.empty(int(np.prod(shape)), object)
        for i in range(strings.size):
            item = c_void_p(data + i * _TSTRING_BYTES)
            size = lib.TF_StringGetSize(item)
            strings[i] = ctypes.string_at(lib.TF_StringGetDataPointer(item), size)
        return _reshaped(strings, shape)
    if dtype in (tf.resource, tf.variant):
        raise invalid(f"cannot return a tensor of type {dtype.name}")
    content = ctypes.string_at(data, lib.TF_TensorByteSize(tensor)) if data else b""
    return _reshaped(np.frombuffer(content, dtype.as_numpy_dtype), shape)


def _reshaped(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    try:
        return array.reshape(shape)
    except ValueError:  # numpy has 64 dimensions, and less than TensorFlow in one beside a 0
        raise invalid(f"A tensor of shape {list(shape)} is more than this server handles") from None
