"""Writes what engines read: checkpoints with heads of random weights, SavedModels, ONNX files."""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path
from typing import Any

from tools.bench.cpu import workloads
from tools.bench.cpu.workloads import ANSWER, CLASSIFY, EMBED, KINDS, TAG

# Wide enough that answers differ from each other.
_WIDE = {"initializer_range": 0.2}
# Tokens of int8's calibration: texts that are not measured.
_CALIBRATION = 256


class Ours:
    """Writes this project's files, or another checkout's of it.

    Args:
        folder: the target.
    """

    def __init__(self, folder: Path):
        os.environ |= {"KERAS_BACKEND": "tensorflow"}
        import keras

        import bertfam_tf as bf

        self._bf, self._folder = bf, folder
        keras.utils.set_random_seed(0)

    def checkpoints(self, model: str) -> None:
        """Checkpoints for transformers, of a model with each head."""
        from bertfam_tf.sources import resolve

        bf = self._bf
        for kind in KINDS:
            target = self._folder / kind / "checkpoint"
            if kind == CLASSIFY:
                task = bf.TextClassifier.from_pretrained(
                    model, ["negative", "positive"], pair=False, **_WIDE
                )
            elif kind == TAG:
                task = bf.TokenTagger.from_pretrained(model, workloads.TAGS, **_WIDE)
            elif kind == ANSWER:
                task = bf.SpanQA.from_pretrained(model, **_WIDE)
            else:
                shutil.copytree(resolve(model), target)
                continue
            task.save_pretrained(target)

    def export(self, kind: str, variant: str) -> None:
        """A SavedModel.

        Args:
            kind: one of ``KINDS``; "embed-base" for BERT of base size, "embed-N" for N layers of
                the checkpoint's sizes, both with random weights.
            variant: "unpadded" or "baseline", "padded", "bfloat16", or "int8".
        """
        task, options = self._task(kind), {}
        if kind == TAG:
            options["max_tokens"] = 128
        if variant == "bfloat16":
            options["dtype"] = "bfloat16"
        if variant == "int8":
            options["dtype"] = "int8"
            from bertfam_tf.export import export_saved_model

            if "calibration" in inspect.signature(export_saved_model).parameters:
                texts = [text for text, _ in workloads.train_sentences(_CALIBRATION)]
                options["calibration"] = texts
        target = self._folder / kind / variant
        if variant == "padded":
            from bertfam_tf.models import unpadding

            with unpadding(False):
                task.export(target, **options)
        else:
            task.export(target, **options)

    def _task(self, kind: str) -> Any:
        bf, checkpoint = self._bf, self._folder / kind / "checkpoint"
        if kind == CLASSIFY:
            return bf.TextClassifier.from_pretrained(
                checkpoint, pair=False, max_length=workloads.LENGTH
            )
        if kind == TAG:
            return bf.TokenTagger.from_pretrained(checkpoint)
        if kind == ANSWER:
            return bf.SpanQA.from_pretrained(checkpoint)
        pooled = dict(pooling="mean", normalize=True, max_length=workloads.LENGTH, pair=False)
        if kind == EMBED:
            return bf.TextEmbedder.from_pretrained(checkpoint, **pooled)
        size = kind.removeprefix(f"{EMBED}-")
        checkpoint = self._folder / EMBED / "checkpoint"
        if size == "base":
            backbone = bf.build("bert", "base")
        else:
            config = bf.load_backbone(checkpoint).config.to_dict()
            backbone = bf.build("bert", "tiny", **{**config, "num_layers": int(size)})
        return bf.TextEmbedder(backbone, bf.load_tokenizer(checkpoint), **pooled)


class Peers:
    """Writes ONNX files from torch.

    Args:
        folder: with the checkpoints; the files are written there.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def onnx(self, kind: str) -> None:
        """The float32 file and the one that is quantized dynamically."""
        from onnxruntime.quantization import quantize_dynamic

        from tools.bench import onnx_files
        from tools.bench.cpu.engines import input_names
        from tools.bench.cpu.torch_models import model

        network = model(self._folder / kind / "checkpoint", kind, "eager")
        file = self._folder / kind / "float32.onnx"
        onnx_files.export(network, file, input_names(kind), ["answers"], None)
        quantize_dynamic(file, file.with_stem("int8"))
