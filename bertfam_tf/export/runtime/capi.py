"""The part of TensorFlow's C API that loads and runs SavedModels, through ctypes."""

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

from bertfam_tf.export.runtime.status import Code, ServingError, invalid


class _Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p)]


class _Output(ctypes.Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


_FATAL = 3  # absl::LogSeverity::kFatal
_TSTRING_BYTES = 24  # sizeof(TF_TString), part of TensorFlow's stable C ABI
# A proto with a single value may declare any shape, which is then filled with that value.
_MOST_FILLED_BYTES = 64 << 20
_MOST_BYTES_PER_BYTE_SENT = 16  # a string of one character takes 2 bytes in the proto, 24 in memory

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "TF_NewStatus": (c_void_p, []),
    "TF_DeleteStatus": (None, [c_void_p]),
    "TF_GetCode": (c_int, [c_void_p]),
    "TF_Message": (c_char_p, [c_void_p]),
    "TF_NewBuffer": (POINTER(_Buffer), []),
    "TF_NewBufferFromString": (POINTER(_Buffer), [c_char_p, c_size_t]),
    "TF_DeleteBuffer": (None, [POINTER(_Buffer)]),
    "TF_GetRegisteredKernelsForOp": (POINTER(_Buffer), [c_char_p, c_void_p]),
    "TF_NewGraph": (c_void_p, []),
    "TF_DeleteGraph": (None, [c_void_p]),
    "TF_GraphOperationByName": (c_void_p, [c_void_p, c_char_p]),
    "TF_OperationNumOutputs": (c_int, [c_void_p]),
    "TF_NewSessionOptions": (c_void_p, []),
    "TF_DeleteSessionOptions": (None, [c_void_p]),
    "TF_SetConfig": (None, [c_void_p, c_char_p, c_size_t, c_void_p]),
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
    """Loads the C library of the installed TensorFlow and registers tensorflow-text's ops."""
    libraries = sorted(pathlib.Path(tf.__file__).parent.glob("libtensorflow_cc.*"))
    if not libraries:
        raise ServingError(
            Code.UNIMPLEMENTED, "this TensorFlow ships no libtensorflow_cc; serve on Linux or macOS"
        )
    lib = ctypes.CDLL(os.fspath(libraries[0]))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    # Parts of TensorFlow log through absl, which does not read TF_CPP_MIN_LOG_LEVEL. This is a C++
    # symbol outside of the C API; builds without it log more.
    set_level = getattr(
        lib, "_ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE", None
    )
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    if set_level is not None and level.isdecimal():
        set_level(min(int(level), _FATAL))
    # Loads the kernels only: `import tensorflow_text` needs Keras.
    text = importlib.util.find_spec("tensorflow_text")
    for folder in (text and text.submodule_search_locations) or []:
        tf.load_library(os.path.join(folder, "python", "ops"))
    return lib


class _XlaSwitch:
    """Disables XLA compilation while any session runs.

    TensorFlow Serving disables XLA in the whole process: a SavedModel with a ``jit_compile``
    function loads, but its requests fail. This class reproduces that. This process may also train
    models, so XLA is enabled again when no session is running.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_off = False

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        # C++ symbols outside of the C API; builds without them serve with XLA enabled.
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
    """A TF_Status for one call; raises a ServingError on exit unless the status is OK."""
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


def has_kernel(op: str) -> bool:
    """Returns whether this build of TensorFlow has a kernel for an operation."""
    lib = _library()
    with _status() as status:
        buffer = lib.TF_GetRegisteredKernelsForOp(op.encode(), status)
    try:
        return buffer.contents.length > 0
    finally:
        lib.TF_DeleteBuffer(buffer)


def _destroy(session: int, graph: int) -> None:
    with _status() as status:
        _library().TF_DeleteSession(session, status)
    _library().TF_DeleteGraph(graph)


class Feed(NamedTuple):
    """One input of a run: name in the signature, tensor name (``"op:0"``), value."""

    alias: str
    tensor: str
    value: tensor_pb2.TensorProto


class Session:
    """A SavedModel in a TensorFlow session. ``run`` is thread-safe.

    The session is deleted with the last reference; a run in progress holds one.

    Attributes:
        meta_graph: the serialized MetaGraphDef.
    """

    # The C API calls the same C++ function as Serving (LoadSavedModel): the graph is not imported
    # into Python, shapes are not compared with the signature, and error texts are equal. The v1
    # Python session would need private methods to avoid its own checks.
    def __init__(
        self,
        export_dir: str,
        tags: Sequence[str],
        config: config_pb2.ConfigProto | None = None,
    ) -> None:
        """Loads a SavedModel.

        Args:
            export_dir: the version directory.
            tags: the tags of the meta graph to load.
            config: the session's configuration. All later sessions in the process share the
                thread pools of the first one.

        Raises:
            ServingError: with TensorFlow's code and text, if the model does not load.
        """
        lib = _library()
        graph = lib.TF_NewGraph()
        options = lib.TF_NewSessionOptions()
        meta_graph = lib.TF_NewBuffer()
        names = (c_char_p * len(tags))(*[tag.encode() for tag in tags])
        try:
            serialized = b"" if config is None else config.SerializeToString()
            with _status() as status:
                lib.TF_SetConfig(options, serialized, len(serialized), status)
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
        self._outputs: dict[str, _Output] = {}
        # Not at exit: a run that was abandoned at its deadline may still use the session.
        weakref.finalize(self, _destroy, session, graph).atexit = False

    def run(
        self,
        feeds: Sequence[Feed],
        fetches: Sequence[str],
        timeout_ms: int = 0,
    ) -> list[np.ndarray]:
        """Runs the graph.

        Args:
            feeds: the inputs; dtypes are checked and shapes are not, as in Serving.
            fetches: names of the tensors to compute (``"op:0"``).
            timeout_ms: the run is cancelled with DEADLINE_EXCEEDED after this time; 0 means no
                limit.

        Returns:
            An array for each fetch; strings are object arrays of bytes.

        Raises:
            ServingError: with TensorFlow's code and text.
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
        """Cancels runs in progress; later runs fail."""
        with _status() as status:
            _library().TF_CloseSession(self._session, status)

    def _output(self, name: str, missing: str) -> _Output:
        if name in self._outputs:
            return self._outputs[name]
        operation_name, _, index = name.partition(":")
        lib = _library()
        operation = lib.TF_GraphOperationByName(self._graph, operation_name.encode())
        if not operation or int(index or 0) >= lib.TF_OperationNumOutputs(operation):
            raise ServingError(Code.NOT_FOUND, missing.format(name))
        self._outputs[name] = _Output(operation, int(index or 0))
        return self._outputs[name]


def declares_too_much(proto: tensor_pb2.TensorProto) -> bool:
    """Returns whether a proto declares a much larger tensor than it has values for.

    TensorFlow would allocate the declared size. The process would run out of memory, or crash if
    the size overflows 64 bits.
    """
    try:
        dtype = tf.as_dtype(proto.dtype)
    except TypeError:
        return False  # TensorFlow refuses unknown dtypes
    item = _TSTRING_BYTES if dtype == tf.string else dtype.size
    size = item * math.prod(abs(dim.size) for dim in proto.tensor_shape.dim)
    return size > _MOST_FILLED_BYTES and size > _MOST_BYTES_PER_BYTE_SENT * proto.ByteSize()


@contextlib.contextmanager
def _tensor(feed: Feed) -> Iterator[int]:
    """A TF_Tensor with the feed's value. TensorFlow parses it and owns its strings."""
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
    except ValueError:  # numpy has fewer dimensions, and smaller ones next to a dimension of 0
        raise invalid(f"A tensor of shape {list(shape)} is more than this server handles") from None
