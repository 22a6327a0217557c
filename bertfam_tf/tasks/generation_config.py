"""Settings of ``generation_config.json``, which transformers' ``generate`` follows."""

from __future__ import annotations

from typing import Any

from bertfam_tf.generation import Options
from bertfam_tf.names import truncated_repr
from bertfam_tf.tasks.module_files import read_object
from bertfam_tf.tasks.pretrained import Published
from bertfam_tf.user_warnings import warn

_FILE = "generation_config.json"
# Settings of the same names here, with transformers' defaults.
_SEARCH = {
    "max_new_tokens": None,
    "min_new_tokens": 0,
    "num_beams": 1,
    "length_penalty": 1,
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
}
_SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}
# Settings that change the tokens and have no equal here, and values that disable them.
_OTHERS = (
    "min_length", "typical_p", "bad_words_ids", "stop_strings", "suppress_tokens",
    "begin_suppress_tokens", "sequence_bias", "forced_bos_token_id", "forced_eos_token_id",
    "exponential_decay_length_penalty", "epsilon_cutoff", "eta_cutoff", "top_h", "penalty_alpha",
    "num_beam_groups", "diversity_penalty", "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size", "force_words_ids", "guidance_scale",
)  # fmt: skip
_DISABLED: tuple[Any, ...] = (None, 0, 1, [])
_IDS = ("forced_bos_token_id", "forced_eos_token_id")  # of which 0 and 1 are tokens


class GenerationConfig(Published):
    """Warns of settings that change what transformers generates, and names arguments for them.

    Raises:
        CheckpointError: for a file that is damaged.
    """

    def fill(self, task: Any) -> None:
        file = self.model / _FILE
        said = read_object(file)
        arguments: dict[str, Any] = {}
        ends = said.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if any(token != task.tokenizer.special_ids.get("eos") for token in ends):
            arguments["stop_tokens"] = ends
        for name, default in _SEARCH.items():
            if said.get(name, default) not in (None, default):
                arguments[name] = said[name]
        others = [
            name
            for name in _OTHERS
            if said.get(name) not in ((None,) if name in _IDS else _DISABLED)
        ]
        for name in ("max_new_tokens", "min_new_tokens"):
            value = arguments.get(name)
            if isinstance(value, int) and value >= task.max_length:
                del arguments[name]
                others.append(f"{name}={value} with max_length={task.max_length}")
        least = arguments.get("min_new_tokens")
        most = arguments.get("max_new_tokens", Options.max_new_tokens)
        if isinstance(least, int) and isinstance(most, int) and least > most:
            del arguments["min_new_tokens"]
            others.append(f"min_new_tokens={least} with max_new_tokens={most}")
        if "num_beams" not in arguments:
            arguments.pop("length_penalty", None)  # which only beam search reads
        elif said.get("early_stopping"):
            others.append("early_stopping")
        if said.get("do_sample") and "num_beams" in arguments:
            others.append("do_sample with num_beams")
        elif said.get("do_sample"):
            sampling = {name: said.get(name, default) for name, default in _SAMPLING.items()}
            # There, null and 0 disable a setting; here, sampling needs one.
            arguments["temperature"] = sampling.pop("temperature") or 1.0
            arguments |= {name: value for name, value in sampling.items() if value}
        if arguments or others:
            listed = ", ".join(f"{name}={truncated_repr(x)}" for name, x in arguments.items())
            same = f" The same settings here: generate(prompts, {listed})." if listed else ""
            none = f" There is none for {', '.join(others)}." if others else ""
            warn(f"generate does not follow {file}.{same}{none}")
