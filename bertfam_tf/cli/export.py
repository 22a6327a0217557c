"""``bertfam export``."""

import argparse
from pathlib import Path

from bertfam_tf.cli.common import (
    DTYPES,
    LANGUAGES,
    Commands,
    add_command,
    add_model,
    calibration_texts,
    loaded_task,
    set_language,
)

_FOR_SERVING = ("version", "dtype", "batching", "fallback", "attention", "label_names")
_FOR_PHONES = ("inputs", "quantize", "length")
_FOR_ONNX = ("opset",)
_FOR_ONE_TASK = ("attention", "label_names")


def add(commands: Commands) -> None:
    text = "write a SavedModel for TF Serving, or a .tflite or .onnx file"
    parser = add_command(commands, "export", run, text)
    add_model(parser)
    parser.add_argument(
        "directory", help="parent of the version's directory; with --tflite or --onnx, the file"
    )
    parser.add_argument("--version", type=int, help="version number (default: the next one)")
    parser.add_argument("--language", help=f"of texts that come without one, {LANGUAGES}")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="dtype of stored weights (default: float32); bfloat16 also computes in bfloat16, "
        "faster with AVX512-BF16 or AMX; int8 computes in int8, on x86 CPUs",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="typical texts, one example per line with tabs between its texts, for --dtype int8 "
        "and --quantize int8-full",
    )
    parser.add_argument(
        "--fallback",
        action="store_true",
        default=None,
        help="with --dtype int8 or bfloat16, write DIRECTORY-float32 too, for other CPUs",
    )
    parser.add_argument(
        "--batching",
        action="store_true",
        default=None,
        help="batch concurrent requests inside the graph",
    )
    parser.add_argument(
        "--attention",
        type=int,
        metavar="TOKENS",
        help="add a signature that returns the attention of so many tokens, for the server's page",
    )
    parser.add_argument(
        "--label-names",
        action="store_true",
        default=None,
        help="return the names of a classifier's scores too, as labels",
    )
    parser.add_argument("--tflite", action="store_true", help="write a .tflite file for phones")
    parser.add_argument(
        "--onnx",
        action="store_true",
        help="write an .onnx file that takes token ids, for ONNX Runtime",
    )
    phone = parser.add_argument_group("with --tflite")
    phone.add_argument(
        "--inputs", choices=("text", "ids"), help="inputs of the model (default: text)"
    )
    phone.add_argument("--quantize", choices=("fp16", "int8", "int8-full"), help="its weights")
    phone.add_argument("--length", type=int, help="maximum number of tokens (default: the task's)")
    onnx = parser.add_argument_group("with --onnx")
    onnx.add_argument("--opset", type=int, help="version of ONNX's operations (default: 17)")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf import parsing

    if options.tflite and options.onnx:
        raise ValueError("--tflite and --onnx write different files; choose one of them.")
    kind = "--tflite" if options.tflite else "--onnx" if options.onnx else "SavedModels"
    kinds = {"SavedModels": _FOR_SERVING, "--tflite": _FOR_PHONES, "--onnx": _FOR_ONNX}
    arguments = {}
    for owner, names in kinds.items():
        for name in names:
            value = getattr(options, name)
            if value is not None and owner != kind:
                raise ValueError(f"--{name.replace('_', '-')} is for {owner}.")
            if value is not None:
                arguments[name] = value
    if options.calibration is not None and options.onnx:
        raise ValueError("--calibration is for SavedModels and --tflite.")
    task = loaded_task(options, several=kind == "SavedModels")
    served = task.served_tasks()
    if options.calibration is not None:
        arguments["calibration"] = calibration_texts(options, served.get(""))
    for name in _FOR_ONE_TASK:
        if name in arguments and "" not in served:
            raise ValueError(
                f"--{name.replace('_', '-')} is for one task; choose it with --task: "
                f"{', '.join(served)}."
            )
    for member in served.values():
        set_language(member, options)
    if options.tflite:
        print(task.export_tflite(options.directory, **arguments))
        return
    if options.onnx:
        print(task.export(options.directory, format="onnx", **arguments))
        return
    from bertfam_tf.export import BatchingOptions
    from bertfam_tf.recipes.directory import METRICS

    metrics = Path(options.model) / METRICS
    arguments["batching"] = BatchingOptions() if options.batching else None
    arguments["metrics"] = parsing.read_json(metrics) if metrics.is_file() else None
    print(task.export(options.directory, **arguments))
