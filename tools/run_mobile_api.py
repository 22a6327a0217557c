"""Runs one of the mobile text APIs in its own environment; started by check_mobile_apis.

    python tools/run_mobile_api.py API FILE QUESTIONS ANSWERS

QUESTIONS and ANSWERS are JSON files: a list of texts or [question, context]; and one answer for
each, as returned by the API. It does not import bertfam_tf.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def text_classifier(file: str) -> Iterator[Callable[[str], Any]]:
    """MediaPipe's text classifier: labels to scores."""
    from mediapipe.tasks.python import BaseOptions, text

    options = text.TextClassifierOptions(base_options=BaseOptions(model_asset_path=file))
    with text.TextClassifier.create_from_options(options) as api:
        yield lambda asked: {
            found.category_name: found.score
            for found in api.classify(asked).classifications[0].categories
        }


@contextmanager
def text_embedder(file: str) -> Iterator[Callable[[str], Any]]:
    """MediaPipe's text embedder: vectors."""
    from mediapipe.tasks.python import BaseOptions, text

    options = text.TextEmbedderOptions(base_options=BaseOptions(model_asset_path=file))
    with text.TextEmbedder.create_from_options(options) as api:
        yield lambda asked: api.embed(asked).embeddings[0].embedding.tolist()


@contextmanager
def bert_nl_classifier(file: str) -> Iterator[Callable[[str], Any]]:
    """The Task Library's classifier: labels to scores."""
    from tflite_support.task import text

    api = text.BertNLClassifier.create_from_file(file)
    yield lambda asked: {
        found.category_name: found.score
        for found in api.classify(asked).classifications[0].categories
    }


@contextmanager
def bert_question_answerer(file: str) -> Iterator[Callable[[list[str]], Any]]:
    """The Task Library's answerer: text, first and last token, and the sum of the logits."""
    from tflite_support.task import text

    api = text.BertQuestionAnswerer.create_from_file(file)

    def answer(asked: list[str]) -> list[Any]:
        question, context = asked
        return [
            [found.text, found.pos.start, found.pos.end, found.pos.logit]
            for found in api.answer(context, question).answers
        ]

    yield answer


APIS = {
    "TextClassifier": text_classifier,
    "TextEmbedder": text_embedder,
    "BertNLClassifier": bert_nl_classifier,
    "BertQuestionAnswerer": bert_question_answerer,
}


def main(api: str, file: str, questions: str, answers: str) -> None:
    with open(questions, encoding="utf-8") as stream:
        asked = json.load(stream)
    with APIS[api](file) as ask:
        found = [ask(question) for question in asked]
    with open(answers, "w", encoding="utf-8") as stream:
        json.dump(found, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
