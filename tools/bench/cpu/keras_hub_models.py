"""KerasHub's classifier with the weights of a checkpoint of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras_hub
from safetensors.numpy import load_file


def classifier(checkpoint: Path, length: int, **compiled: Any) -> Any:
    """A ``BertTextClassifier`` whose preprocessor pads to ``length`` tokens.

    Args:
        checkpoint: a checkpoint of transformers, with a head.
        length: tokens of each row.
        **compiled: arguments of ``compile``, if it is to be trained.
    """
    models = keras_hub.models
    tensors = load_file(checkpoint / "model.safetensors")
    tokenizer = models.BertTokenizer(str(checkpoint / "vocab.txt"), lowercase=True)
    model = models.BertTextClassifier(
        models.BertBackbone.from_preset(str(checkpoint)),
        num_classes=tensors["classifier.weight"].shape[0],
        preprocessor=models.BertTextClassifierPreprocessor(tokenizer, sequence_length=length),
    )
    head = model.get_layer("logits")
    head.set_weights([tensors["classifier.weight"].T, tensors["classifier.bias"]])
    if compiled:
        model.compile(**compiled)
    return model
