"""``bertfam plan``."""

import argparse
import json

from bertfam_tf.cli.common import Commands, add_command


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "plan", run, "print what a recipe's run will take, without running it"
    )
    parser.add_argument("recipe", help="a YAML file, of pretraining or fine-tuning")
    parser.add_argument(
        "override", nargs="*", help="key=value after the recipe, such as train.steps=1000"
    )
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="N", help="devices of a copy of the model"
    )
    parser.add_argument(
        "--accumulation", type=int, metavar="N", help="micro-batches of a step (the recipe's)"
    )
    parser.add_argument(
        *("--gradient-checkpointing", "--recompute"),
        dest="recompute",
        action="store_true",
        help="gradient checkpointing, also if the recipe does not turn it on",
    )
    parser.add_argument(
        "--dtype",
        help="float32, mixed_bfloat16 or mixed_float16 (default: the recipe's train.precision, or "
        "float32)",
    )
    parser.add_argument(
        "--peak",
        type=float,
        help="FLOP/s of a device (default: an NVIDIA A100's, 156e12 in float32 and 312e12 in "
        "half precision)",
    )
    parser.add_argument(
        "--mfu",
        type=float,
        default=0.4,
        help="model FLOPs utilization, the fraction of the peak that is reached (%(default)s)",
    )
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)  # its name in version 0.1
    parser.add_argument("--memory", type=float, metavar="GIB", help="of a device")
    parser.add_argument(
        "--bandwidth", type=float, help="bytes/s between devices (default: included in the MFU)"
    )
    parser.add_argument("--price", type=float, help="of a device and hour")
    parser.add_argument("--steps", type=int, metavar="N", help="if the recipe has none")
    parser.add_argument("--json", action="store_true", help="all numbers, as one line of JSON")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf import plan

    recipe = plan.read(options.recipe, options.override)
    accumulation, train = options.accumulation, recipe.train
    devices = plan.Devices(
        count=options.devices,
        tensor_parallel=options.tensor_parallel,
        accumulation=train.accumulation_steps if accumulation is None else accumulation,
        recompute=options.recompute or train.gradient_checkpointing,
        dtype=options.dtype or train.precision or "float32",
        peak=options.peak,
        mfu=options.mfu,
        share=options.share,
        memory=options.memory,
        bandwidth=options.bandwidth,
        price=options.price,
    )
    planned = plan.plan(recipe, devices, options.steps)
    print(json.dumps(planned.to_dict()) if options.json else plan.table(planned))
