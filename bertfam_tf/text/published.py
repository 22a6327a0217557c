"""Writes a tokenizer's files for transformers' ``AutoTokenizer``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertfam_tf.parsing import read_object
from bertfam_tf.text.files import CONFIG_FILE, JSON_FILE, SPECIAL_FILE, write_json
from bertfam_tf.text.json_writer import special_names, tokenizer_json
from bertfam_tf.text.kernels.moses import nonbreaking_prefixes
from bertfam_tf.text.special_tokens import token_entry, token_settings
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.text.tokenizers.bpe import BPETokenizer

# Runs tokenizer.json unchanged; the named classes replace parts of it.
_GENERIC = "PreTrainedTokenizerFast"


def save_published(
    tokenizer: Tokenizer,
    directory: Path,
    *,
    inputs: Sequence[str],
    max_length: int,
    pad_id: int | None = None,
    any_language: bool = False,
) -> str:
    """Writes vocabulary files, tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    ``load_tokenizer`` can read them too.

    Args:
        tokenizer: the tokenizer.
        directory: the directory to write; created if missing.
        inputs: the model's inputs, by transformers' names: ``input_ids``, …
        max_length: the maximum number of tokens of an input.
        pad_id: the id of padding for a tokenizer without a padding token, or None.
        any_language: whether the tokenizer of any language is written, because the model needs the
            language of each text too; else only one that splits as transformers' class does by
            default, by English rules.

    Returns:
        The name of the transformers class that reads the vocabulary files, for config.json.

    Raises:
        ValueError: transformers has no equivalent; nothing is written.
    """
    options = tokenizer.get_config()
    moses = isinstance(tokenizer, BPETokenizer) and options["splitter"] == "moses"
    fast = None if moses else tokenizer_json(tokenizer)
    if fast is None:
        _check_moses(tokenizer, any_language)
    tokenizer.save(directory)
    written = read_object(directory / CONFIG_FILE)
    name = written["tokenizer_class"]
    tokens = special_names(tokenizer)
    if pad_id is not None:
        tokens.setdefault("pad_token", tokenizer.id_to_token(pad_id))
    additional = list(options["additional_special_tokens"])
    if fast is None:
        # This class begins texts with ``bos_token``; the real one is kept as a special token.
        if "bos_token" in tokens:
            additional.append(tokens["bos_token"])
        tokens["bos_token"] = tokens[f"{tokenizer.layout.single[0]}_token"]
    lstrip = set(options["lstrip_tokens"])
    unsaid = {key: value for key, value in written.items() if not key.endswith("_token")}
    config = {
        **unsaid,
        "tokenizer_class": name if fast is None else _GENERIC,
        **{role: token_entry(token, lstrip) for role, token in tokens.items()},
        "additional_special_tokens": [token_entry(token, lstrip) for token in additional],
        "model_max_length": max_length,
        "model_input_names": list(inputs),
        "padding_side": "left" if tokenizer.layout.pad_left else "right",
        "truncation_side": "left" if tokenizer.layout.truncate_left else "right",
        "clean_up_tokenization_spaces": False,
    }
    write_json(directory / CONFIG_FILE, config)
    if fast is not None:
        write_json(directory / JSON_FILE, fast)

    def stored(token: str) -> Any:
        return token_settings(token, lstrip) if token in lstrip else token

    named: dict[str, Any] = {role: stored(token) for role, token in tokens.items()}
    if additional:
        named["additional_special_tokens"] = list(map(stored, additional))
    write_json(directory / SPECIAL_FILE, named)
    return name


def _check_moses(tokenizer: Tokenizer, any_language: bool) -> None:
    """Raises ValueError for options that transformers' class, a Python class, does not support."""
    options, layout = tokenizer.get_config(), tokenizer.layout
    language, prefixes = options["language"], options["prefixes"]
    if options["lower_case"]:
        raise ValueError(
            "transformers 5 lower-cases after splitting words, with different results."
        )
    if language != "en" and not any_language:
        raise ValueError(f"transformers' class reads English by default, not {language!r}.")
    if set(prefixes or ()) != set(nonbreaking_prefixes(language)):
        raise ValueError("its list of nonbreaking prefixes differs from Moses' list.")
    first, last = layout.single[0], layout.single[-1]
    rows = [(first, "a", "sep"), (first, "a", "sep", "b", "sep")]
    if [layout.single, layout.pair] != rows or last != "sep" or first == "a":
        raise ValueError(
            f"transformers' class does not support the layout {layout.single}, {layout.pair}."
        )
