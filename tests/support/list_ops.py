"""Lists the operations of a SavedModel by library: python tests/support/list_ops.py DIR

Prints JSON ``{"core": [names], "text": […], "python": […], "unknown": […]}``: operations of
TensorFlow, of tensorflow-text, those that call Python, and the rest. Includes the main graph and
all functions in its library, and needs neither bertfam_tf nor Keras.
"""

import importlib.util
import json
import sys
from pathlib import Path

sys.modules.update(dict.fromkeys(("keras", "bertfam_tf")))

import tensorflow as tf  # noqa: E402
from tensorflow.core.framework import op_def_pb2  # noqa: E402
from tensorflow.core.protobuf import saved_model_pb2  # noqa: E402
from tensorflow.python.client import pywrap_tf_session  # noqa: E402

PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}


def _registered() -> set[str]:
    listed = pywrap_tf_session.TF_GetAllOpList()
    return {
        op.name for op in op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(listed)).op
    }


def operations(directory: str) -> set[str]:
    """Returns the names of a SavedModel's operations; calls of its own functions are left out."""
    content = (Path(directory) / "saved_model.pb").read_bytes()
    names = set()
    for meta in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        library = meta.graph_def.library.function
        graphs = [meta.graph_def.node, *(function.node_def for function in library)]
        used = {node.op for graph in graphs for node in graph}
        names |= used - {function.signature.name for function in library}
    return names


def main() -> None:
    used = operations(sys.argv[1])
    core = _registered()
    # Not with an import, which would need Keras.
    folder = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    tf.load_library(str(Path(folder) / "python" / "ops"))
    text = _registered() - core
    kinds = {
        "core": used & core - PYTHON,
        "text": used & text,
        "python": used & PYTHON,
        "unknown": used - core - text,
    }
    print(json.dumps({kind: sorted(names) for kind, names in kinds.items()}))


if __name__ == "__main__":
    main()
