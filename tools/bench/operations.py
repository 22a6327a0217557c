"""Counts the operations that an exported classifier executes for one text and for a batch.

    python -m tools.bench.operations --models DIR  # of `python -m tools.bench.cpu --models DIR`

SST-2's dev sentences (make data). Writes tools/results/cpu_operations.md. Counts do not depend on
what else the machine does.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tests.support.executed import executed
from tests.support.texts import ROOT
from tools.bench import machine
from tools.bench.cpu import prepare, workloads
from tools.bench.cpu.report import table
from tools.bench.cpu.workloads import CLASSIFY

RESULT = ROOT / "tools" / "results" / "cpu_operations.md"
_VARIANTS = {"float32": "unpadded", "bfloat16": "bfloat16", "int8": "int8"}
_BATCHES = (1, 32)
_KINDS = {
    "products of layers": (
        *("MatMul", "_FusedMatMul", "_QuantizedMatMul", "_MklMatMul", "_MklFusedMatMul"),
        *("_MklNativeMatMul", "_MklNativeFusedMatMul"),
    ),
    "products of attention": ("BatchMatMulV2", "_MklBatchMatMulV2", "_MklFusedBatchMatMulV2"),
    "biases outside of products": ("BiasAdd",),
    "sums, products and roots of norms, residual sums, GELU": (
        *("Mean", "Square", "SquaredDifference", "Rsqrt", "AddV2", "Mul", "Sub", "Neg", "Erfc"),
        *("_FusedAddV2", "AddN", "Tanh", "Erf", "_MklLayerNorm"),
    ),
    "softmax and masks": ("Softmax", "_MklSoftmax", "Minimum", "Maximum", "SelectV2"),
    "moves of tokens and heads": (
        *("GatherV2", "Reshape", "Transpose", "ConcatV2", "StridedSlice", "Slice", "Pack", "Pad"),
        *("PadV2", "ExpandDims", "Squeeze", "ResourceGather", "_MklTranspose"),
    ),
    "reads of weights": ("VarHandleOp", "ReadVariableOp", "Identity", "Split", "SplitV", "Unpack"),
    "casts and quantization": ("Cast", "Bitcast", "QuantizeV2"),
    "constants": ("Const",),
    "branches and calls": ("Switch", "Merge", "If", "StatelessIf", "_Arg", "_Retval", "NoOp"),
}
_OTHERS = "tokenization, shapes and all others"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    folder = parser.parse_args().models / CLASSIFY
    rows = [row.encode() for row in workloads.sst2().rows if isinstance(row, str)]
    kind_of = {op: kind for kind, ops in _KINDS.items() for op in ops}
    columns: dict[str, collections.Counter[str]] = {}
    for dtype, variant in _VARIANTS.items():
        if not (folder / variant).exists():
            prepare.Ours(folder.parent).export(CLASSIFY, variant)
        for size in _BATCHES:
            texts = np.array(rows[:size], object)
            counts = executed(folder / variant / "1", {"text": texts})
            kinds = columns[f"{dtype}, batch {size}"] = collections.Counter()
            for operation, count in counts.items():
                kinds[kind_of.get(operation, _OTHERS)] += count
    lines = [[kind, *(str(c[kind]) for c in columns.values())] for kind in (*_KINDS, _OTHERS)]
    lines.append(["all", *(str(sum(c.values())) for c in columns.values())])
    onednn = "on" if machine.onednn_by_default() else "off"
    flags = ", ".join(machine.vectors())
    text = f"""# Operations that an exported classifier executes

`python -m tools.bench.operations`, {datetime.date.today()}. {machine.cpu()} ({flags}), oneDNN \
{onednn}. {machine.versions(("tensorflow", "tensorflow-text", "keras"))}.

MiniLM-L6, from raw text to a label, SST-2 dev. One text alone takes a branch of the graph without \
masks, gathers and groups of examples. With oneDNN, GELU is part of a product (5 operations fewer \
in each layer). In int8, GELU and residual sums always are, and each product needs two operations \
that quantize its input and one for the type of its weights. Branches that are not taken do not \
count.

{table(["", *columns], lines)}
"""
    RESULT.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
