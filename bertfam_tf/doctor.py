"""Describes this installation: versions, devices, and packages that features lack."""

from __future__ import annotations

import importlib.util
import platform
from importlib import metadata
from typing import Any, NamedTuple

_NEEDED = ("tensorflow", "tensorflow-text", "keras", "keras-nlp")


class Extra(NamedTuple):
    """A feature that needs more packages.

    Fields:
        feature: the feature that needs it.
        modules: names that are imported.
        extra: the extra in ``pip install 'bertfam_tf[…]'``; None for a separate package.
        package: the name for ``pip install``, if ``extra`` is None.
    """

    feature: str
    modules: tuple[str, ...]
    extra: str | None
    package: str | None = None

    @property
    def install(self) -> str:
        name = self.package if self.extra is None else f"'bertfam_tf[{self.extra}]'"
        return f"pip install {name}"


EXTRAS = (
    Extra("serve over REST and gRPC", ("grpc", "starlette", "uvicorn"), "serve"),
    Extra("the server's page", ("nicegui",), "ui"),
    Extra("pictures", ("matplotlib",), "plots"),
    Extra("ONNX files", ("tf2onnx", "onnxruntime"), "onnx"),
    Extra("index and search", ("faiss",), "search"),
    Extra("data sets of tensorflow-datasets", ("tensorflow_datasets",), "tfds"),
    Extra("train vocabularies", ("tokenizers",), "vocabulary"),
    Extra("XLM's tokenizer", ("sacremoses",), "xlm"),
    Extra("checkpoints in PyTorch's format", ("torch",), None, "torch"),
    Extra("pandas.DataFrame", ("pandas",), None, "pandas"),
)


class Finding(NamedTuple):
    """One line of ``check``.

    Fields:
        name: the checked item.
        found: its version or state.
        problem: the remedy if it is not right; None if it is.
    """

    name: str
    found: str
    problem: str | None = None


def check() -> list[Finding]:
    """Checks installed packages and runs a model; problems are in the order to mend them."""
    findings = [Finding("Python", f"{platform.python_version()} on {platform.machine()}")]
    for name in _NEEDED:
        version = _version(name)
        problem = None if version else "pip install bertfam_tf"
        findings.append(Finding(name, version or "missing", problem))
    if all(finding.problem is None for finding in findings):
        findings += _runtime()
    for extra in EXTRAS:
        there = all(map(importlib.util.find_spec, extra.modules))
        findings.append(Finding(extra.feature, "yes" if there else f"no: {extra.install}"))
    return findings


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _runtime() -> list[Finding]:
    """Keras' backend, devices, and whether a text is answered."""
    import keras

    backend = keras.backend.backend()
    findings = [Finding("Keras' backend", backend)]
    if backend != "tensorflow":
        return findings
    import tensorflow as tf

    devices = ", ".join(device.name for device in tf.config.list_logical_devices())
    findings.append(Finding("devices", devices))
    built, text = tf.__version__.split(".")[:2], (_version("tensorflow-text") or "").split(".")[:2]
    if built != text:
        findings.append(
            Finding(
                "tensorflow-text",
                f"for TensorFlow {'.'.join(text)}, but TensorFlow is {tf.__version__}",
                f"pip install 'tensorflow-text=={'.'.join(built)}.*'",
            )
        )
    findings.append(_answer())
    return findings


def _answer() -> Finding:
    """Tokenizes and encodes a text with a small new model."""
    name = "a small model in a graph"
    try:
        import tensorflow as tf

        from bertfam_tf.models import build
        from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

        tokenizer = WordPieceTokenizer(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "it", "works"]
        )
        backbone = build("bert", "tiny", vocab_size=tokenizer.vocab_size, num_layers=1)

        @tf.function
        def encode(texts: Any) -> Any:
            # Without a rank, TensorFlow would log a warning for each softmax.
            ids = tf.ensure_shape(tokenizer.tokenize(texts).to_tensor(), (None, None))
            mask = tf.ones_like(ids)
            return backbone({"token_ids": ids, "padding_mask": mask})["sequence_output"]

        shape = encode(tf.constant(["it works"])).shape
        return Finding(name, f"answers with {tuple(shape)}")
    except Exception as error:  # any error is a finding
        return Finding(name, "fails", f"{type(error).__name__}: {error}")


def table(findings: list[Finding]) -> str:
    """Returns a line for each finding, and the remedies of problems."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.name.ljust(width)}  {finding.found}")
        if finding.problem is not None:
            lines.append(f"{' ' * width}  → {finding.problem}")
    return "\n".join(lines)
