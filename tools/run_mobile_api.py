"""Runs one of the mobile text APIs in its own environment; started by check_mobile_apis.

    python tools/run_mobile_api.py API FILE QUESTIONS ANSWERS

QUESTIONS and ANSWERS are JSON files: a list of texts or [question, context]; and one answer for
each, as returned by the API. It does not import bertfam_tf.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def created(name: str, file: str) -> Iterator[Any]:
    """One of MediaPipe's APIs or of the Task Library's, whose names begin with "Bert"."""
    if name.startswith("Bert"):
        from tflite_support.task import text

        yield getattr(text, name).create_from_file(file)
        return
    from mediapipe.tasks.python import BaseOptions, text

    options = getattr(text, f"{name}Options")(base_options=BaseOptions(model_asset_path=file))
    with getattr(text, name).create_from_options(options) as api:
        yield api


def classified(api: Any, asked: str) -> dict[str, float]:
    """Scores by label."""
    (found,) = api.classify(asked).classifications[:1]
    return {each.category_name: each.score for each in found.categories}


def embedded(api: Any, asked: str) -> list[float]:
    """A vector."""
    return api.embed(asked).embeddings[0].embedding.tolist()


def answered(api: Any, asked: list[str]) -> list[Any]:
    """Text, first and last token, and the sum of the logits, of each answer."""
    question, context = asked
    return [
        [each.text, each.pos.start, each.pos.end, each.pos.logit]
        for each in api.answer(context, question).answers
    ]


APIS = {
    "TextClassifier": classified,
    "TextEmbedder": embedded,
    "BertNLClassifier": classified,
    "BertQuestionAnswerer": answered,
}


def main(name: str, file: str, questions: str, answers: str) -> None:
    with open(questions, encoding="utf-8") as stream:
        asked = json.load(stream)
    with created(name, file) as api:
        found = [APIS[name](api, question) for question in asked]
    with open(answers, "w", encoding="utf-8") as stream:
        json.dump(found, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
