"""TFLite Metadata: names of tensors, the vocabulary and the labels of a `.tflite` file.

MediaPipe and the TFLite Task Library use them to tokenize texts and to name scores. The metadata
are a separate flatbuffer in one of the model's buffers; the files that they refer to follow the
model as a zip archive. Field numbers are from
https://github.com/google-ai-edge/mediapipe/blob/master/mediapipe/tasks/metadata/metadata_schema.fbs
(1.5.0).
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Sequence
from typing import Any

import flatbuffers
from flatbuffers import encode, number_types
from flatbuffers.table import Table
from tensorflow.lite.python import schema_py_generated as schema

VOCABULARY = "vocab.txt"
SENTENCEPIECE = "spiece.model"
LABELS = "labels.txt"
INPUTS = ("ids", "mask", "segment_ids")

_ENTRY = b"TFLITE_METADATA"
_MODEL_IDENTIFIER = b"TFL3"
_IDENTIFIER = b"M001"
# The first version of the schema with tokenizers.
_PARSER = "1.1.0"
# Runtimes map the file into memory: weights stay aligned to 16 bytes, or to a cache line.
_ALIGNMENT = 64
# Errors of reading a damaged flatbuffer.
_DAMAGE = (ValueError, TypeError, IndexError, AttributeError, struct.error)

# Enumerations of the schema.
_UNKNOWN_FILE, _AXIS_LABELS, _VOCABULARY_FILE = 0, 2, 5
_FEATURE = 1
_TOKENIZERS = {
    VOCABULARY: (4, _VOCABULARY_FILE, "The WordPiece vocabulary, one token per line."),
    SENTENCEPIECE: (5, _UNKNOWN_FILE, "The SentencePiece model."),
}


class _File:
    NAME, DESCRIPTION, TYPE = 0, 1, 2


class _Unit:
    OPTIONS_TYPE, OPTIONS = 0, 1


class _Tensor:
    NAME, CONTENT, FILES = 0, 3, 6


class _Content:
    PROPERTIES_TYPE, PROPERTIES = 0, 1


class _SubGraph:
    INPUTS, OUTPUTS, INPUT_UNITS = 2, 3, 5


class _Metadata:
    NAME, DESCRIPTION, SUBGRAPHS, PARSER = 0, 1, 3, 7


class _Model:
    VERSION, BUFFERS, METADATA, FIELDS = 0, 4, 6, 8


def with_metadata(
    model: bytes,
    *,
    name: str,
    description: str = "",
    vocabulary: Sequence[str] | bytes | None = None,
    labels: Sequence[str] = (),
) -> bytes:
    """Adds metadata, and optionally the tokenizer and the labels, to a `.tflite` file.

    The new bytes are written before the model's own, which stay unchanged and keep their alignment.
    Weights are copied, not serialized again: 100 MB take less than a second.

    Args:
        model: the file's content; tensors get the names that its single signature has for them.
        name, description: texts for people.
        vocabulary: the WordPiece tokens in the order of their ids, or the content of a
            SentencePiece model; the inputs must be ``ids``, ``mask`` and ``segment_ids``, int32 (1,
            length). None if the app tokenizes.
        labels: the names along the last axis of the single output, which the APIs expect to be
            called ``probability``. Line breaks within labels become spaces, because the file has
            one label per line.

    Returns:
        The content of the new file.

    Raises:
        ValueError: if the file is damaged, has not exactly one signature, has metadata already or
            is 2 GB or larger (its weights then follow the flatbuffer); or readers would misread the
            vocabulary or the labels.
    """
    try:
        old = _parsed(model)
        inputs, outputs = _tensors(old)
    except _DAMAGE as error:
        raise ValueError(f"This .tflite file cannot be read: {error}") from error
    _check_entries(old)
    files: dict[str, bytes] = {}
    if vocabulary is not None:
        _check_inputs(inputs)
        if isinstance(vocabulary, bytes):
            files[SENTENCEPIECE] = vocabulary
        else:
            _check_vocabulary(vocabulary)
            files[VOCABULARY] = _lines(vocabulary)
    if labels:
        _check_labels(labels, outputs)
        files[LABELS] = _lines([" ".join(label.splitlines()) for label in labels])
    texts = {
        _Metadata.NAME: name,
        _Metadata.DESCRIPTION: description,
        _Metadata.PARSER: _PARSER,
    }
    metadata = _metadata(texts, [*inputs], [*outputs], files)
    stream = io.BytesIO()
    stream.write(_extended(model, old, metadata))
    # Offsets in the archive are relative to the start of the whole file, as readers expect.
    with zipfile.ZipFile(stream, "w") as archive:
        for file, content in files.items():
            archive.writestr(zipfile.ZipInfo(file), content)
    return stream.getvalue()


# The model ------------------------------------------------------------------------------------


def _parsed(model: bytes) -> Any:
    """Returns the root of the model; all of its offsets are checked to be within the file."""
    if model[4:8] != _MODEL_IDENTIFIER:
        raise ValueError(f"it starts with {model[:8]!r}, expected {_MODEL_IDENTIFIER!r} at byte 4")
    root = schema.Model.GetRootAs(model, 0)
    # Reads everything, weights as views: flatbuffers has no verifier for Python.
    schema.ModelT.InitFromObj(root)
    return root


def _tensors(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the inputs and the outputs by their names in the signature, in the file's order."""
    if model.SignatureDefsLength() != 1:
        raise ValueError(f"it has {model.SignatureDefsLength()} signatures, expected one")
    signature = model.SignatureDefs(0)
    graph = model.Subgraphs(signature.SubgraphIndex())

    def by_name(indices: Any, maps: list[Any]) -> dict[str, Any]:
        names = {item.TensorIndex(): item.Name().decode("utf-8") for item in maps}
        return {names[index]: graph.Tensors(index) for index in indices.tolist()}

    try:
        return (
            by_name(graph.InputsAsNumpy(), _all(signature.Inputs, signature.InputsLength())),
            by_name(graph.OutputsAsNumpy(), _all(signature.Outputs, signature.OutputsLength())),
        )
    except KeyError as error:
        raise ValueError(f"its tensor {error} has no name in the signature") from error


def _all(item: Any, count: int) -> list[Any]:
    return [item(i) for i in range(count)]


def _entries(model: Any) -> list[Any]:
    return _all(model.Metadata, model.MetadataLength())


def _check_entries(model: Any) -> None:
    if any(entry.Name() == _ENTRY for entry in _entries(model)):
        raise ValueError("The model already has metadata.")
    if any(buffer.Offset() > 1 for buffer in _all(model.Buffers, model.BuffersLength())):
        raise ValueError("The model's weights follow its flatbuffer, as in files of 2 GB or more.")


def _extended(model: bytes, old: Any, metadata: bytes) -> bytearray:
    """Adds a buffer with the metadata and an entry that refers to it.

    Offsets in a flatbuffer are relative and point forward. A new root, the extended lists of
    buffers and entries, and the metadata are therefore written before the model and point into it.
    """
    size = -(-len(model) // _ALIGNMENT) * _ALIGNMENT
    count = old.BuffersLength()
    room = 4096 + len(metadata) + 4 * (count + old.MetadataLength())
    # Builders write backwards; this one starts as if it had just written the old model.
    builder = flatbuffers.Builder(0)
    builder.Bytes = bytearray(room + size)
    builder.Bytes[room : room + len(model)] = model
    builder.head = room
    builder.minalign = _ALIGNMENT

    builder.StartVector(1, len(metadata), 16)
    for byte in reversed(metadata):
        builder.PrependByte(byte)
    data = builder.EndVector()
    schema.BufferStart(builder)
    schema.BufferAddData(builder, data)
    buffer = schema.BufferEnd(builder)
    name = builder.CreateString(_ENTRY)
    schema.MetadataStart(builder)
    schema.MetadataAddName(builder, name)
    schema.MetadataAddBuffer(builder, count)
    entry = schema.MetadataEnd(builder)

    def offsets(tables: list[Any]) -> list[int]:
        return [size - table._tab.Pos for table in tables]

    replaced = {
        _Model.BUFFERS: _vector(builder, [*offsets(_all(old.Buffers, count)), buffer]),
        _Model.METADATA: _vector(builder, [*offsets(_entries(old)), entry]),
    }
    root = old._tab
    fields = (encode.Get(number_types.VOffsetTFlags.packer_type, model, _vtable(root)) - 4) // 2
    if fields > _Model.FIELDS:
        raise ValueError(f"The model's root has {fields} fields, expected at most {_Model.FIELDS}.")
    builder.StartObject(_Model.FIELDS)
    builder.PrependUint32Slot(_Model.VERSION, old.Version(), 0)
    for field in range(_Model.VERSION + 1, _Model.FIELDS):
        offset = root.Offset(4 + 2 * field)
        if field in replaced:
            builder.PrependUOffsetTRelativeSlot(field, replaced[field], 0)
        elif offset:
            position = size - root.Indirect(root.Pos + offset)
            builder.PrependUOffsetTRelativeSlot(field, position, 0)
    builder.Finish(builder.EndObject(), _MODEL_IDENTIFIER)
    return builder.Output()


def _vtable(table: Table) -> int:
    return table.Pos - table.Get(number_types.SOffsetTFlags, table.Pos)


# The metadata ---------------------------------------------------------------------------------


def _check_inputs(inputs: dict[str, Any]) -> None:
    described = {
        name: (tensor.Type(), tensor.ShapeAsNumpy().tolist()) for name, tensor in inputs.items()
    }
    if sorted(inputs) != sorted(INPUTS) or any(
        kind != schema.TensorType.INT32 or len(shape) != 2 or shape[0] != 1
        for kind, shape in described.values()
    ):
        shapes = ", ".join(f"{name} {shape}" for name, (_, shape) in described.items())
        raise ValueError(f"The inputs are {shapes}; expected {', '.join(INPUTS)}, int32 [1, L].")


def _check_vocabulary(vocabulary: Sequence[str]) -> None:
    for i, piece in enumerate(vocabulary):
        if not piece or "\n" in piece:
            raise ValueError(
                f"Piece {i} is {piece!r}; readers expect one piece per line, and skip empty lines."
            )
    missing = [piece for piece in ("[CLS]", "[SEP]", "[UNK]") if piece not in vocabulary]
    if missing:
        raise ValueError(f"The vocabulary lacks {', '.join(missing)}, which readers look up.")


def _check_labels(labels: Sequence[str], outputs: dict[str, Any]) -> None:
    shapes = {name: tensor.ShapeAsNumpy().tolist() for name, tensor in outputs.items()}
    listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if [shape[-1:] for shape in shapes.values()] != [[len(labels)]]:
        raise ValueError(f"There are {len(labels)} labels for the outputs {listing}.")


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode("utf-8")


def _metadata(
    texts: dict[int, str], inputs: list[str], outputs: list[str], files: dict[str, bytes]
) -> bytes:
    builder = flatbuffers.Builder(1024)

    def file(name: str, kind: int, description: str) -> int:
        offsets = {
            _File.NAME: builder.CreateString(name),
            _File.DESCRIPTION: builder.CreateString(description),
        }
        return _vector(builder, [_table(builder, offsets, {_File.TYPE: kind})])

    def tensor(name: str) -> int:
        properties = {_Content.PROPERTIES: _table(builder, {})}
        offsets = {
            _Tensor.NAME: builder.CreateString(name),
            _Tensor.CONTENT: _table(builder, properties, {_Content.PROPERTIES_TYPE: _FEATURE}),
        }
        if name in outputs and LABELS in files:
            offsets[_Tensor.FILES] = file(
                LABELS, _AXIS_LABELS, "Names of the scores, one per line."
            )
        return _table(builder, offsets)

    graph = {
        _SubGraph.INPUTS: _vector(builder, [tensor(name) for name in inputs]),
        _SubGraph.OUTPUTS: _vector(builder, [tensor(name) for name in outputs]),
    }
    for name, (tokenizer, kind, what) in _TOKENIZERS.items():
        if name in files:
            # The file is the first field in the options of both tokenizers.
            options = {_Unit.OPTIONS: _table(builder, {0: file(name, kind, what)})}
            unit = _table(builder, options, {_Unit.OPTIONS_TYPE: tokenizer})
            graph[_SubGraph.INPUT_UNITS] = _vector(builder, [unit])
    root = {field: builder.CreateString(text) for field, text in texts.items() if text}
    root[_Metadata.SUBGRAPHS] = _vector(builder, [_table(builder, graph)])
    builder.Finish(_table(builder, root), _IDENTIFIER)
    return bytes(builder.Output())


def _vector(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _table(
    builder: flatbuffers.Builder, offsets: dict[int, int], numbers: dict[int, int] | None = None
) -> int:
    """Returns a table; field number to offset, and field number to one-byte number."""
    numbers = numbers or {}
    builder.StartObject(max([*offsets, *numbers], default=-1) + 1)
    for field, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    for field, number in numbers.items():
        builder.PrependUint8Slot(field, number, 0)
    return builder.EndObject()
