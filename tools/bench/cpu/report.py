"""Writes what was found as tables in Markdown, and as a picture."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.bench import machine
from tools.bench.cpu.engines import (
    BASELINE,
    BFLOAT16,
    INT8,
    ONNX,
    ONNX_INT8,
    OPENVINO_HALF,
    OURS,
    PACKED,
    PACKED_HALF,
    PADDED,
    TORCH,
    TORCH_HALF,
)
from tools.bench.cpu.results import Measured, Results
from tools.bench.cpu.sections import Plan
from tools.bench.cpu.turns import Spread, ratios, spread
from tools.bench.cpu.workloads import ANSWER, CLASSIFY, EMBED, TAG

_PACKAGES = (
    *("tensorflow", "tensorflow-text", "keras", "onnxruntime", "openvino", "torch"),
    *("transformers", "tokenizers", "keras-hub", "numpy"),
)
_TITLES = {
    CLASSIFY: "From raw text to a label",
    EMBED: "From raw text to an embedding",
    TAG: "Tagging",
    ANSWER: "Span QA",
}
_INT8 = (INT8, ONNX_INT8)
_HALF = (BFLOAT16, OPENVINO_HALF, TORCH_HALF)
_DASH = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(value: Spread | None) -> str:
    """A ratio with its range: "1.52 (1.48 to 1.55)"; the range only where it would differ."""
    if value is None:
        return _DASH
    low, middle, high = (f"{each:.2f}" for each in (value.low, value.median, value.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def rate(value: Spread | None) -> str:
    """A number per second with its range as a share of it: "153 ± 2 %"."""
    if value is None:
        return _DASH
    digits = 0 if value.median >= 20 else 1
    return f"{value.median:,.{digits}f} ± {value.share / 2:.0%}".replace("%", " %")


def compared(columns: list[Measured], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The rows of a table of ratios: ours to each of the same precision, others to float32."""
    head = ["", *(f"batch {each.size}" for each in columns)]
    rows = []
    pairs = []
    for name in names:
        if name == INT8:
            pairs.append((INT8, OURS))
        elif name == BFLOAT16:
            pairs += [(BFLOAT16, OURS), (BFLOAT16, ONNX)]
        elif name == PACKED:
            pairs += [(PACKED, OURS), (PACKED, ONNX)]
        elif name == PACKED_HALF:
            pairs += [(PACKED_HALF, BFLOAT16), (PACKED_HALF, ONNX)]
        elif name != OURS:
            pairs.append((INT8 if name in _INT8 else BFLOAT16 if name in _HALF else OURS, name))
    for first, name in pairs:
        values = [ratio(each.ratio(first, name)) for each in columns]
        if set(values) != {_DASH}:
            rows.append([f"{first} / {name}", *values])
    return head, rows


def _names(columns: list[Measured]) -> list[str]:
    return list(dict.fromkeys(name for each in columns for name in each.found))


def speeds(results: Results, columns: list[Measured], unit: str) -> str:
    """Ratios first, then absolute numbers, then shares of the product rate."""
    names = _names(columns)
    head, rows = compared(columns, names)
    parts = [f"How many times as many {unit} per second:\n", table(head, rows)] if rows else []
    absolute = [[name, *(rate(each.rate(name)) for each in columns)] for name in names]
    parts += [f"\n{unit.capitalize()} per second:\n", table(head, absolute)]
    shares = [[name, *(_percent(results.share(each, name)) for each in columns)]
              for name in names if name not in (*_INT8, *_HALF, PACKED_HALF)]  # fmt: skip
    if results.best_rate and columns[0].workload.kind != ANSWER and columns[0].clock == "cpu":
        parts += [
            "\nShare of the best product rate, counting the products of real tokens alone:\n",
            table(head, shares),
        ]
    return "\n".join(parts)


def _percent(value: float | None) -> str:
    return _DASH if value is None else f"{value:.0%}".replace("%", " %")


def document(results: Results, plan: Plan, command: str, model: str) -> str:
    """What the results file holds."""
    parts = [
        "# Speed on CPU cores compared with other libraries",
        _conditions(results, plan, command, model),
        "![Speed on one core](../../docs/cpu-speed.png)",
    ]
    if results.rates:
        parts += ["## The machine", _products(results)]
    for kind, title in _TITLES.items():
        if kind not in results.tables:
            continue
        parts.append(f"## {title}, one core")
        by_name: dict[str, list[Measured]] = {}
        for each in results.tables[kind]:
            if each.found:
                by_name.setdefault(each.workload.name, []).append(each)
        unit = {ANSWER: "questions", CLASSIFY: "sentences", TAG: "sentences"}.get(kind, "texts")
        for name, columns in by_name.items():
            rows = f"{min(len(each.workload.rows) for each in columns)} to "
            rows += f"{max(len(each.workload.rows) for each in columns)} texts"
            parts += [f"### {name} ({rows})", speeds(results, columns, unit)]
    if results.agreement:
        parts += ["## Do they answer alike?", _agreement(results)]
    if results.memory:
        parts += ["## Memory", _memory(results)]
    if results.growth:
        parts += ["## How time grows", _growth(results)]
    if "two-cores" in results.tables:
        parts += ["## Two cores", _two_cores(results)]
    if results.training:
        parts += ["## Training, one core", _training(results)]
    if results.failures:
        lines = [f"* {name}: {why}" for name, why in results.failures.items()]
        parts += ["## Left out", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _conditions(results: Results, plan: Plan, command: str, model: str) -> str:
    flags = ", ".join(machine.vectors()) or "no vector instructions that it names"
    onednn = "on" if machine.onednn_by_default() else "off"
    busiest = max(
        (each.busy() for columns in results.tables.values() for each in columns), default=0.0
    )
    return f"""`{command}`, {datetime.date.today()}. {machine.cpu()} ({flags}), \
{os.cpu_count()} cores. Python {platform.python_version()}, {machine.versions(_PACKAGES)}.

{model}, float32 unless a name says int8 or bfloat16, the same weights and the same raw text for \
all; heads have random weights. *Ours* is the exported SavedModel in the server's loader, with \
what TensorFlow does by default here: oneDNN {onednn}. *{PADDED}* is exported so that padding is \
computed. With packed weights, `TF_ENABLE_ONEDNN_OPTS` and `TF_ONEDNN_ASSUME_FROZEN_WEIGHTS` \
are 1. The others get ids from `tokenizers`, padded to the longest text of a batch, except \
KerasHub, whose own preprocessor pads to 128 tokens; it has no part where texts are longer. \
ONNX Runtime's and OpenVINO's file is torch's export; ONNX Runtime's int8 is its dynamic \
quantization. torch computes with fused attention (sdpa) in inference mode.

Each engine is a process of its own with one thread, pinned to one core; they take turns, and who \
waits is blocked on a pipe. Numbers are medians of {plan.rounds} rounds ({plan.fewer} but for \
SST-2) of CPU time, ratios those within a round, with lowest and highest. At batch 1, each has \
answered all texts once before. On two cores it is time by the clock. While one computed on one \
core, at most {busiest:.0%} more time went by than it computed."""


def _products(results: Results) -> str:
    rows = [
        [name, f"{spread(values).median / 1e9:.1f}", f"{spread(values).share:.0%}"]
        for name, values in sorted(results.rates.items(), key=lambda item: -spread(item[1]).median)
    ]
    text = table(["float32 product of one core", "GFLOP/s", "spread"], rows)
    return f"{text}\n\nThe best of them is what shares are of."


def _agreement(results: Results) -> str:
    rows = [
        [kind, name, _percent(share), f"{most:.1e}"]
        for (kind, name), (share, most) in results.agreement.items()
        if name != OURS
    ]
    text = table(["", "engine", "rows within 0.001 of ours", "largest difference"], rows)
    return (
        f"{text}\n\nOf 64 texts (8 for span QA): of probabilities, of embeddings' values, of "
        "probabilities of words' tags, and of an answer's place and probability. Who computes in "
        "float32 and differs is left out of all tables."
    )


def _memory(results: Results) -> str:
    workloads = list(dict.fromkeys(n for each in results.memory.values() for n in each))[1:]
    rows = [
        [
            name,
            *(f"{each[what]:,.0f}" if what in each else _DASH for what in ("loaded", *workloads)),
        ]
        for name, each in results.memory.items()
    ]
    head = ["resident MB", "with the model loaded", *(f"most at 32 rows of {w}" for w in workloads)]
    return table(head, rows)


def _growth(results: Results) -> str:
    parts = []
    for what, engines in results.growth.items():
        if not engines:
            continue
        sizes = list(dict.fromkeys(at for found in engines.values() for at, _ in found))
        rows = [
            [
                name,
                *(f"{1e3 * dict(found)[at]:,.1f}" if at in dict(found) else _DASH for at in sizes),
            ]
            for name, found in engines.items()
        ]
        parts.append(table([f"ms by {what}", *map(str, sizes)], rows))
    for name, (begin, slope, explained) in results.fit.items():
        line = (
            f"{name}: {1e3 * begin:.2f} ms and {1e6 * slope:.1f} µs for each real token of mixed "
        )
        parts.append(f"{line}rows, by least squares; R² is {explained:.4f}.")
    if results.equal:
        values = "; ".join(f"{name} {ratio(each)}" for name, each in results.equal.items())
        parts.append(f"32 mixed rows / 32 equal rows of as many tokens, time: {values}.")
    if results.base and results.best_rate:
        share = results.base.median / results.best_rate
        parts.append(
            f"BERT-base, 32 rows of 128 real tokens: {results.base.median / 1e9:.1f} GFLOP/s, "
            f"{_percent(share)} of the best product rate."
        )
    return "\n\n".join(parts)


def _two_cores(results: Results) -> str:
    columns = results.tables["two-cores"]
    names = _names(columns)
    head = ["one request at a time", *(f"batch {each.size}" for each in columns)]
    rows = [[name, *(rate(each.rate(name)) for each in columns)] for name in names]
    return f"Sentences of SST-2 per second:\n\n{table(head, rows)}"


def _training(results: Results) -> str:
    parts = []
    titles = {
        "fine-tune": "SST-2, 32 sentences a step, batches as they come: examples per second",
        "fine-tune, grouped": "the same, sentences of similar length together",
        "mlm": "masked language model, 16 rows of 128 tokens: real tokens per second",
        "mlm, mixed": "masked language model, as many tokens in rows of mixed lengths",
    }
    for task, found in results.training.items():
        if not found:
            continue
        per = "tokens" if task.startswith("mlm") else "rows"
        rows = []
        rates = {
            name: [each[per] / each["cpu"] for each in rounds] for name, rounds in found.items()
        }
        ours = [name for name in (OURS, BFLOAT16) if name in rates]
        for name, values in rates.items():
            pairs = [None if name == mine else ratios(rates[mine], values) for mine in ours]
            most = max(each["peak"] for each in found[name])
            loss = spread(each["loss"] for each in found[name]).median
            rows.append(
                [name, *map(ratio, pairs), rate(spread(values)), f"{most:,.0f}", f"{loss:.3f}"]
            )
        head = [
            titles[task],
            *(f"{name} / its" for name in ours),
            "per second",
            "most resident MB",
            "mean loss",
        ]
        parts.append(table(head, rows))
    if results.first:
        rows = [[name, f"{each['first']:.1f}"] for name, each in results.first.items()]
        parts.append(table(["first step of fine-tuning", "seconds"], rows))
    parts.append(
        "In bfloat16, ours has the policy mixed_bfloat16, and torch autocasts. "
        "AdamW (torch's fused one), gradients clipped to norm 1, dropout as the checkpoint has it. "
        "Memory is of a process that has taken all steps up to that row's. torch computes the "
        "vocabulary's logits for all tokens, as transformers' model does; KerasHub pads to 128."
    )
    return "\n\n".join(parts)


# The picture -----------------------------------------------------------------------------------

_COLORS = {
    OURS: "#d62728", INT8: "#ff9896", PADDED: "#c49c94", BASELINE: "#8c564b", ONNX: "#1f77b4",
    ONNX_INT8: "#aec7e8", "OpenVINO": "#2ca02c", TORCH: "#9467bd", "KerasHub": "#7f7f7f",
}  # fmt: skip


def picture(results: Results, file: Path) -> None:
    """Draws what there is: speed by batch, growth with tokens and with length, training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8.5))
    tables = results.tables.get(CLASSIFY, [])
    by_name: dict[str, list[Measured]] = {}
    for each in filter(lambda each: each.found, tables):
        by_name.setdefault(each.workload.name, []).append(each)
    plain = [name for name in by_name if "sorted" not in name]
    for axis, name in zip(axes[0], plain[:2], strict=False):
        _bars(axis, by_name[name])
        axis.set_title(f"{name}: sentences per second", fontsize=10)
    first = "real tokens, mixed rows"
    if first in results.growth:
        axis = axes[0][2]
        for name, found in results.growth[first].items():
            x, y = zip(*sorted(found), strict=True)
            axis.plot(x, [1e3 * t for t in y], "o", color=_COLORS.get(name), label=name)
            begin, slope, _ = results.fit[name]
            ends = [0, max(x)]
            axis.plot(ends, [1e3 * (begin + slope * n) for n in ends], color=_COLORS.get(name))
        axis.set(xlabel="real tokens in a batch of mixed lengths", ylabel="ms", ylim=(0, None))
        axis.set_title("Time against real tokens", fontsize=10)
    others = [what for what, found in results.growth.items() if found and what != first]
    for axis, what in zip(axes[1], others[:2], strict=False):
        for name, found in results.growth[what].items():
            x, y = zip(*found, strict=True)
            axis.plot(x, [1e3 * t for t in y], "o-", color=_COLORS.get(name), label=name)
        if "length" in what:
            axis.set_xscale("log", base=2)
        axis.set(xlabel="tokens of a row" if "length" in what else "rows", ylabel="ms")
        axis.set_ylim(0, None)
        axis.set_title(f"Time by {what}", fontsize=10)
    if results.training:
        _trained(axes[1][2], results)
    for axis in axes.flat:
        if not axis.has_data():
            axis.set_visible(False)
        elif axis.get_legend_handles_labels()[0]:
            low, high = axis.get_ylim()
            axis.set_ylim(low, 1.45 * high)  # room for the legend
            axis.legend(fontsize=7, loc="upper left", ncols=2)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"One core of {machine.cpu()}, {datetime.date.today()}", fontsize=11)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _bars(axis, columns: list[Measured]) -> None:
    names = _names(columns)
    width = 0.85 / len(names)
    for place, name in enumerate(names):
        rates = [each.rate(name) for each in columns]
        at = [i + width * (place - (len(names) - 1) / 2) for i in range(len(columns))]
        heights = [each.median if each else 0 for each in rates]
        errors = [
            [each.median - each.low if each else 0 for each in rates],
            [each.high - each.median if each else 0 for each in rates],
        ]
        color = _COLORS.get(name, "#e377c2")
        axis.bar(at, heights, width, color=color, label=name, yerr=errors, error_kw={"lw": 0.7})
    axis.set_xticks(range(len(columns)), [f"batch {each.size}" for each in columns])


def _trained(axis, results: Results) -> None:
    groups = []
    for task, found in results.training.items():
        per = "tokens" if task.startswith("mlm") else "rows"
        if TORCH in found:
            medians = {
                n: spread(each[per] / each["cpu"] for each in rounds).median
                for n, rounds in found.items()
            }
            groups.append((task, {n: value / medians[TORCH] for n, value in medians.items()}))
    if not groups:
        return
    names = list(dict.fromkeys(name for _, values in groups for name in values))
    width = 0.85 / len(names)
    for place, name in enumerate(names):
        at = [i + width * (place - (len(names) - 1) / 2) for i in range(len(groups))]
        heights = [values.get(name, 0) for _, values in groups]
        axis.bar(at, heights, width, color=_COLORS.get(name), label=name)
    axis.set_xticks(range(len(groups)), [task for task, _ in groups], fontsize=8)
    axis.set_title("Training steps, speed relative to torch", fontsize=10)
