"""The signatures of each task's export: python -m tools.docs.signatures

Run it after a signature has changed; tests/docs/test_site.py compares the file. It is not computed
with each build because the graphs of all tasks take half a minute.
"""

import json
from typing import Any

import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.tasks import Task
from bertfam_tf.text import WordPieceTokenizer
from tools.docs.reference import SIGNATURES, task_names

_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
_NAMES = ["a", "b"]
_ARGUMENTS: dict[str, tuple] = {
    "FewShotClassifier": (_NAMES,),
    "TextClassifier": (_NAMES,),
    "MultiLabelClassifier": (_NAMES,),
    "MultipleChoice": (2,),
    "TokenTagger": (["O", "B-PER", "I-PER"],),
    "ZeroShotClassifier": (_NAMES, ["entailment", "contradiction"]),
}
_WITH_PAIR = ("TextClassifier", "MultiLabelClassifier", "TextRegressor", "MultipleChoice")


def signatures() -> dict[str, dict[str, Any]]:
    """The inputs and outputs of each task's signatures: dtypes and shapes by name."""
    tokenizer = WordPieceTokenizer(_PIECES)
    shape = dict(vocab_size=tokenizer.vocab_size, hidden_size=16, num_heads=2, num_layers=1)
    encoder = bf.build("bert", "tiny", intermediate_size=16, **shape)
    decoder = bf.build("gpt", "tiny", **shape)
    found = {}
    for name in task_names():
        backbone = decoder if name == "CausalLM" else encoder
        options = {"pair": False} if name in _WITH_PAIR else {}
        task = getattr(bf, name)(backbone, tokenizer, *_ARGUMENTS.get(name, ()), **options)
        found[name] = _signatures(task)
    return found


def _signatures(task: Task) -> dict[str, Any]:
    found = {}
    for name, each in task.signatures().items():
        inputs = task.feature_specs if each.inputs is None else each.inputs
        plain = each.method == "predict"

        def answer(given: Any, function: Any = each.function, plain: bool = plain) -> Any:
            return function(given if plain else task.answer(given))

        graph = tf.function(answer, autograph=False).get_concrete_function(inputs)
        found[name] = {
            "method": each.method,
            "inputs": _described(inputs),
            "outputs": _described(graph.structured_outputs),
        }
    return found


def _described(specs: dict[str, Any]) -> dict[str, list]:
    return {name: [each.dtype.name, each.shape.as_list()] for name, each in specs.items()}


if __name__ == "__main__":
    SIGNATURES.write_text(json.dumps(signatures(), indent=1) + "\n", "utf-8")
    print(SIGNATURES)
