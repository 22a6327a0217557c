"""ONNX files of PyTorch's models, and ONNX Runtime's sessions."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Each function imports one: a process that answers with ONNX Runtime has no torch in memory.
if TYPE_CHECKING:
    import onnxruntime
    import torch


def export(
    model: torch.nn.Module,
    file: Path,
    inputs: list[str],
    outputs: list[str],
    shape: list[int] | None,
) -> None:
    """Writes a model as ONNX.

    Args:
        model: takes int64 (batch, length) tensors in the order of ``inputs``. Attention that is
            written out ("eager") is what optimizers know to fuse.
        file: the target.
        inputs, outputs: names.
        shape: [batch, length] of the only inputs that the file takes; None for any.
    """
    import torch

    example = torch.ones(shape or [2, 8], dtype=torch.long)
    axes: dict[str, Any] = {}
    if shape is None:
        axes = {name: {0: "batch", 1: "length"} for name in inputs}
        axes |= {name: {0: "batch"} for name in outputs}
    with warnings.catch_warnings(action="ignore"):  # of an exporter to come, and of constants
        torch.onnx.export(
            model,
            tuple(example for _ in inputs),
            file,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes or None,
            opset_version=17,
            dynamo=False,
        )


def session(file: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session on the CPU with a number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Numbers at padding are denormal, and make it up to 1.5 times slower.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
