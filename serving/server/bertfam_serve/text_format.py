"""Reads Serving's configuration files, which are in protobuf text format.

tensorflow-serving-api contains the messages of model configurations. It lacks the messages of
batching and monitoring, which are defined here. protobuf's own parser reads all of them.
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

from bertfam_tf.export.runtime.status import Code, ServingError, invalid

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tensorflow.serving"
# Field name to number and type; a capitalized type is a message of this file or a wrapper.
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
        name="bertfam_serve/config.proto", package=_PACKAGE, syntax="proto3"
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
    # A separate pool: other packages may register the same names in the default pool.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return pool


_POOL = _pool()


def message(name: str) -> Any:
    """Returns an empty "BatchingParameters" or "MonitoringConfig"."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))()


def read(path: str | os.PathLike[str], target: Any) -> Any:
    """Parses a file in protobuf text format into a message, and returns the message.

    Args:
        path: the file.
        target: an empty message.

    Raises:
        ServingError: NOT_FOUND if the file does not exist; INVALID_ARGUMENT, with line, column and
            field, if it does not parse.
    """
    try:
        text_format.Parse(Path(path).read_text("utf-8"), target)
    except FileNotFoundError as error:
        raise ServingError(Code.NOT_FOUND, f"{os.fspath(path)}; {error.strerror}") from None
    except OSError as error:
        raise invalid(f"Error reading {os.fspath(path)}: {error.strerror}") from None
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise invalid(
            f"Error parsing text-format {target.DESCRIPTOR.full_name}: {error} "
            f"(file {os.fspath(path)})"
        ) from None
    return target
