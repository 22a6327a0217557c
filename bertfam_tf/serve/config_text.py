"""Serving's configuration files in protobuf text format, where no package brings their messages.

tensorflow-serving-api has the messages of the model config file; those of batching and of
monitoring are told here, field by field, and read by protobuf's own parser.
"""

import os
from pathlib import Path
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

from bertfam_tf.serve.status import Code, ServingError, invalid

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tensorflow.serving"
# Field name to number and type; a type in capitals is a message of the same file or a wrapper.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "BatchingParameters": {
        "max_batch_size": (1, "Int64Value"),
        "batch_timeout_micros": (2, "Int64Value"),
        "max_enqueued_batches": (3, "Int64Value"),
        "num_batch_threads": (4, "Int64Value"),
        "thread_pool_name": (5, "StringValue"),
        "allowed_batch_sizes": (6, "repeated int64"),
        "pad_variable_length_inputs": (7, "bool"),
        "enable_large_batch_splitting": (8, "BoolValue"),
        "max_execution_batch_size": (9, "Int64Value"),
    },
    "PrometheusConfig": {"enable": (1, "bool"), "path": (2, "string")},
    "MonitoringConfig": {"prometheus_config": (1, "PrometheusConfig")},
}


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="bertfam_tf/serve/config.proto", package=_PACKAGE, syntax="proto3"
    )
    file.dependency.append(wrappers_pb2.DESCRIPTOR.name)
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            repeated, _, kind = kind.rpartition(" ")
            field = message.field.add(name=name, number=number)
            field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind[0].islower():
                field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
            else:
                field.type = _Field.TYPE_MESSAGE
                package = _PACKAGE if kind in _MESSAGES else "google.protobuf"
                field.type_name = f".{package}.{kind}"
    # Of its own: another package may put the same names into the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return pool


_POOL = _pool()


def read(path: str | os.PathLike[str], name: str) -> Any:
    """A message of the file's.

    Args:
        path: of a file in protobuf text format.
        name: "BatchingParameters" or "MonitoringConfig".

    Raises:
        ServingError: NOT_FOUND without the file; INVALID_ARGUMENT with line, column and field of
            the first mistake.
    """
    full_name = f"{_PACKAGE}.{name}"
    message = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))()
    try:
        text_format.Parse(Path(path).read_text("utf-8"), message)
    except FileNotFoundError:
        raise ServingError(Code.NOT_FOUND, f"{path}; No such file or directory") from None
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"Error reading {path}: {error}") from None
    except text_format.ParseError as error:
        raise invalid(f"Error parsing text-format {full_name} in {path}: {error}") from None
    return message
