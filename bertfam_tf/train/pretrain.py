"""From a recipe to a language model trained on a stream of text."""

from __future__ import annotations

import json
import logging
from typing import Any

import keras

from bertfam_tf import models, optimizers
from bertfam_tf.config import PretrainRecipe, expand
from bertfam_tf.data.streams import read_lines, segments, token_stream
from bertfam_tf.tasks import CausalLM
from bertfam_tf.text import load_tokenizer
from bertfam_tf.train.backup import Backup
from bertfam_tf.train.run import METRICS, MODEL, RECIPE, check_free
from bertfam_tf.train.streams import StreamLM

_log = logging.getLogger(__name__)


def pretrain(recipe: PretrainRecipe) -> dict[str, Any]:
    """Trains a language model from random weights, on text files read as one stream.

    The output directory gets the recipe, the trained ``CausalLM``, a CSV of the history with the
    perplexity of the held-out text after each epoch, and samples. A run that was killed goes on
    from the last epoch that ended; one that is done answers with the metrics that it wrote.

    Returns:
        ``perplexity`` of the held-out text, ``tokens`` of the other, and ``samples``, a text for
        each prompt.

    Raises:
        ValueError: for a recipe or file that is not valid, and when the output directory holds
            another recipe's run.
    """
    output, settings = expand(recipe.output), recipe.train
    tokenizer = load_tokenizer(expand(recipe.model.tokenizer))

    def stream(files: list[str]):
        return token_stream(read_lines(map(expand, files)), tokenizer, recipe.data.end)

    train, dev = stream(recipe.data.train), stream(recipe.data.dev)
    batches = segments(train, settings.batch_size, recipe.data.length)
    steps = int(batches.cardinality())
    backup = Backup(output / "backup", steps)
    check_free(output, recipe, backup)
    if (output / METRICS).is_file():
        _log.info("%s is done already.", output)
        return json.loads((output / METRICS).read_text("utf-8"))
    keras.utils.set_random_seed(settings.seed)
    model = recipe.model
    overrides = {"vocab_size": tokenizer.vocab_size, **model.overrides}
    task = CausalLM(models.build(model.family, model.size, **overrides), tokenizer)
    learner = StreamLM(task.backbone, task.head)
    learner.compile(
        optimizers.adamw(
            settings.learning_rate,
            total_steps=steps * settings.epochs,
            warmup=settings.warmup,
            weight_decay=settings.weight_decay,
            clip_norm=settings.clip_norm,
            epsilon=settings.epsilon,
            beta_2=settings.beta_2,
        ),
        jit_compile=False,
    )
    output.mkdir(parents=True, exist_ok=True)
    (output / RECIPE).write_text(recipe.to_yaml(), "utf-8")
    done = backup.restore(learner) // steps
    learner.fit(
        batches,
        initial_epoch=done,
        epochs=settings.epochs,
        validation_data=segments(dev, 1, recipe.data.length),
        callbacks=[backup, keras.callbacks.CSVLogger(output / "history.csv", append=True)],
    )
    task.save(output / MODEL)
    metrics = {
        "perplexity": learner.perplexity({"held-out text": dev}, length=recipe.data.length)[
            "held-out text"
        ],
        "tokens": len(train),
        "samples": {
            prompt: task.generate(prompt, max_new_tokens=60, temperature=0.8, top_p=0.9, seed=0)
            for prompt in recipe.prompts
        },
    }
    temporary = output / f".{METRICS}"
    temporary.write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n", "utf-8")
    temporary.rename(output / METRICS)
    backup.clear()
    return metrics
