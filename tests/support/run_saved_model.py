"""Runs an exported model in the same way as TensorFlow Serving.

    python tests/support/run_saved_model.py DIR [SIGNATURE] < TEXTS

Reads lines of JSON ``{"input": [strings], …}`` and prints ``{"output": values, …}`` for each; bytes
that are not UTF-8 are lone surrogates, as in Python's "surrogateescape". It uses TensorFlow's C++
loader (``TF_LoadSessionFromSavedModel``) with tensorflow-text's operations, without XLA, and blocks
imports of bertfam_tf and Keras.
"""

import ctypes
import importlib.util
import json
import sys
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

BLOCKED = ("keras", "tf_keras", "keras_hub", "keras_nlp", "bertfam_tf", "torch", "transformers")
sys.modules.update(dict.fromkeys(BLOCKED))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf import meta_graph_pb2  # noqa: E402

_STRING, _FLOAT = 7, 1
_NUMBERS = {_FLOAT: ctypes.c_float, 3: ctypes.c_int32, 9: ctypes.c_int64, 10: ctypes.c_bool}


class _Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p)]


class _Port(ctypes.Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(next(Path(tf.__file__).parent.glob("libtensorflow_cc.so*"))))
    pointers = """TF_NewStatus TF_NewGraph TF_NewSessionOptions TF_GraphOperationByName
        TF_LoadSessionFromSavedModel TF_NewBufferFromString TF_NewBuffer TF_AllocateTensor
        TF_TensorData TF_StringGetDataPointer"""
    for name in pointers.split():
        getattr(lib, name).restype = c_void_p
    lib.TF_Message.restype = c_char_p
    lib.TF_Dim.restype = c_int64
    lib.TF_StringGetSize.restype = c_size_t
    lib._ZN10tensorflow21DisableXlaCompilationEv()
    text = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    tf.load_library(str(Path(text) / "python" / "ops"))
    return lib


class Model:
    """A SavedModel."""

    def __init__(self, directory: str):
        self.lib = _library()
        self.status = c_void_p(self.lib.TF_NewStatus())
        self.graph = c_void_p(self.lib.TF_NewGraph())
        meta = ctypes.cast(self.lib.TF_NewBuffer(), ctypes.POINTER(_Buffer))
        self.session = c_void_p(
            self.lib.TF_LoadSessionFromSavedModel(
                c_void_p(self.lib.TF_NewSessionOptions()),
                None,
                directory.encode(),
                (c_char_p * 1)(b"serve"),
                1,
                self.graph,
                meta,
                self.status,
            )
        )
        self._check()
        data = ctypes.string_at(meta.contents.data, meta.contents.length)
        self.signatures = meta_graph_pb2.MetaGraphDef.FromString(data).signature_def

    def _check(self) -> None:
        if self.lib.TF_GetCode(self.status):
            raise RuntimeError(self.lib.TF_Message(self.status).decode())

    def _port(self, name: str) -> _Port:
        operation, _, index = name.partition(":")
        found = self.lib.TF_GraphOperationByName(self.graph, operation.encode())
        return _Port(found, int(index or 0))

    def _tensor(self, values: list, dtype: int) -> c_void_p:
        proto = tf.make_tensor_proto(values, dtype).SerializeToString()
        buffer = c_void_p(self.lib.TF_NewBufferFromString(proto, c_size_t(len(proto))))
        tensor = c_void_p(self.lib.TF_AllocateTensor(_FLOAT, None, 0, c_size_t(4)))
        self.lib.TF_TensorFromProto(buffer, tensor, self.status)
        self._check()
        return tensor

    def _values(self, tensor: c_void_p):
        shape = [self.lib.TF_Dim(tensor, i) for i in range(self.lib.TF_NumDims(tensor))]
        count = 1
        for size in shape:
            count *= size
        data = self.lib.TF_TensorData(tensor)
        kind = self.lib.TF_TensorType(tensor)
        if kind == _STRING:
            values = []
            for i in range(count):
                cell = c_void_p(data + 24 * i)
                pointer = self.lib.TF_StringGetDataPointer(cell)
                values.append(
                    ctypes.string_at(pointer, self.lib.TF_StringGetSize(cell)).decode(
                        "utf-8", "replace"
                    )
                )
        else:
            values = list((_NUMBERS[kind] * count).from_address(data)) if count else []
        return np.array(values, object).reshape(shape).tolist()

    def run(self, inputs: dict[str, list], name: str = "serving_default") -> dict[str, list]:
        """All outputs of a signature."""
        signature = self.signatures[name]
        names, outputs = sorted(inputs), sorted(signature.outputs)
        given = [(inputs[n], signature.inputs[n]) for n in names]
        feeds = (_Port * len(names))(*(self._port(info.name) for _, info in given))
        values = (c_void_p * len(names))(*(self._tensor(x, info.dtype) for x, info in given))
        wanted = [self._port(signature.outputs[output].name) for output in outputs]
        fetches, found = (_Port * len(wanted))(*wanted), (c_void_p * len(wanted))()
        self.lib.TF_SessionRun(
            *(self.session, None),
            *(feeds, values, len(names)),
            *(fetches, found, len(wanted)),
            *(None, 0, None, self.status),
        )
        self._check()
        return {n: self._values(c_void_p(t)) for n, t in zip(outputs, found, strict=True)}


def main() -> None:
    model = Model(sys.argv[1])
    for line in sys.stdin:
        given = json.loads(line)
        answer = model.run(
            {
                name: [text.encode("utf-8", "surrogateescape") for text in texts]
                for name, texts in given.items()
            },
            *sys.argv[2:],
        )
        print(json.dumps(answer))
    assert not any(sys.modules.get(name) for name in BLOCKED)


if __name__ == "__main__":
    main()
