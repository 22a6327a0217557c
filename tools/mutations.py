"""Introduces mistakes into the code, to verify that each family's golden tests fail.

    python -m tools.mutations [FAMILY …] [--selection test]

One mistake at a time is made in memory, and the family's golden tests are run as in pytest,
starting with the ones in `make test`. One of them must fail because of the size of a difference;
errors when loading and wrong shapes do not count. ``--selection test`` skips tests that only `make
test-all` runs. For all families and tests, the result is written to tools/results/mutations.md. The
exit status is 1 if a mistake is not caught.
"""

import argparse
import inspect
import platform
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import tensorflow as tf

from bertfam_tf import layers, registry
from bertfam_tf.layers import activations, attention, positions, relative
from tests import parity, test_goldens

RESULT = Path(__file__).parent / "results" / "mutations.md"


# Mistakes -------------------------------------------------------------------------------------


def _edited(owner: Any, name: str, old: str, new: str) -> AbstractContextManager:
    """Replaces ``old`` by ``new`` in the source of a method or function."""
    return mock.patch.object(owner, name, _edit(getattr(owner, name), owner.__name__, old, new))


def _edit(function: Any, where: str, old: str, new: str) -> Any:
    source = textwrap.dedent(inspect.getsource(function))
    if old not in source:
        raise ValueError(f"{where}.{function.__name__} no longer contains {old!r}.")
    made: dict[str, Any] = {}
    exec(source.replace(old, new), function.__globals__, made)
    return made[function.__name__]


def _rewired(family: str, old: str, new: str) -> AbstractContextManager:
    """Replaces text in the source of the family's ``wire``."""
    record = registry.get(family)
    wire = _edit(record.wire, family, old, new)
    return mock.patch.dict(registry._FAMILIES, {family: replace(record, wire=wire)})


@contextmanager
def _all(*mistakes: AbstractContextManager) -> Iterator[None]:
    with ExitStack() as stack:
        for mistake in mistakes:
            stack.enter_context(mistake)
        yield


def _renamed(family: str, rename: Callable[[str, str], tuple[str, str]]) -> AbstractContextManager:
    """Changes entries of the family's table of weights."""
    record = registry.get(family)
    format, names = (
        (None, record.huggingface)
        if record.huggingface is not None
        else next(iter(record.formats.items()))
    )
    table = dict(rename(*entry) for entry in names.weights.items())
    if table == names.weights:
        raise ValueError(f"The table of {family} has no such names.")
    names = replace(names, weights=table)
    changed = {"formats": {format: names}} if format else {"huggingface": names}
    return mock.patch.dict(registry._FAMILIES, {family: replace(record, **changed)})


def _swapped(family: str, one: str, other: str) -> AbstractContextManager:
    def rename(path, source):
        if one in path:
            return path.replace(one, other), source
        return path.replace(other, one), source

    return _renamed(family, rename)


def _fused(family: str) -> bool:
    """Whether query, key and value are one tensor, as in decoders."""
    return any("query_key_value" in path for path in parity.weights_of(family))


def _queries_as_keys(family: str) -> AbstractContextManager:
    if _fused(family):
        old, new = "query, key, value =", "key, query, value ="
        return _edited(layers.CachedSelfAttention, "call", old, new)
    return _swapped(family, "query/bias", "key/bias")


def _transposed(family: str) -> AbstractContextManager:
    def rename(path, name):
        if "query/kernel" in path:
            return path, name.removesuffix("|T")
        return path, name + "|T" * (_fused(family) and "attention/output/kernel" in path)

    return _renamed(family, rename)


def _epsilon(embedding: bool) -> AbstractContextManager:
    build = keras.layers.LayerNormalization.build

    def changed(self, input_shape):
        if ("embedding" in self.name) == embedding:
            self.epsilon = 1e-5 if self.epsilon < 1e-6 else 1e-12
        build(self, input_shape)

    return mock.patch.object(keras.layers.LayerNormalization, "build", changed)


def _gelu() -> AbstractContextManager:
    exact, tanh = activations._gelu_exact, activations._gelu_tanh
    return mock.patch.dict(activations._ACTIVATIONS, {"gelu": tanh, "gelu_new": exact})


def _has(part: str) -> Callable[[str], bool]:
    """Whether a family's table of weights has such a path or name."""

    def found(family: str) -> bool:
        table = parity.weights_of(family)
        return any(part in f"{path}={name}" for path, name in table.items())

    return found


def _has_square_query(family: str) -> bool:
    table = parity.weights_of(family)
    return any("query/kernel" in path and name.endswith("|T") for path, name in table.items())


def _uses_gelu(family: str) -> bool:
    return "gelu" in registry.get(family).config().activation


Mistake = Callable[[str], AbstractContextManager]


def _in_layers(place: str, old: str, new: str) -> Mistake:
    """Replaces text in a function or method, named from ``layers``."""
    owner, _, name = place.rpartition(".")
    return lambda family: _edited(attrgetter(owner)(layers) if owner else layers, name, old, new)


def _in_wire(old: str, new: str) -> Mistake:
    return lambda family: _rewired(family, old, new)


def _in_table(one: str, other: str) -> Mistake:
    return lambda family: _swapped(family, one, other)


def _no_scale(family: str) -> AbstractContextManager:
    if _has("position_bias")(family):
        return _edited(layers.RelativeAttention, "call", "(self.head_size**-0.5)", "1.0")
    owner, zero = attention._DotProductAttention, "query * self.head_size**0"
    return _edited(owner, "_scores", "query * self.scale", zero)


def _no_shift(family: str) -> AbstractContextManager:
    def unshifted(scores, keys):
        return scores[..., :keys]

    return _all(*(mock.patch.object(each, "shift", unshifted) for each in (relative, positions)))


_LSTM = "ProjectedBidirectionalLSTM.call"
# Mistakes by name: functions that make the mistake in a family.
MUTATIONS: dict[str, Mistake] = {
    "norms swapped": _in_table("attention_norm", "feed_forward_norm"),
    "q/k biases swapped": _queries_as_keys,
    "wrong GELU": lambda family: _gelu(),
    "epsilon of embeddings": lambda family: _epsilon(embedding=True),
    "epsilon of layers": lambda family: _epsilon(embedding=False),
    "no 1/√d": _no_scale,
    "positions + 1": _in_layers("PositionEmbedding.call", "self.offset", "(self.offset + 1)"),
    "query not transposed": _transposed,
    "mask ignored": _in_layers(
        "attention.attention_probabilities", "attention_mask is not None", "False"
    ),
    "future attended to": _in_layers("masks.causal_padding_mask", "<= queries", "<= queries + 1"),
    "u and v swapped": _in_table("content_bias", "position_bias"),
    "no relative shift": _no_shift,
    "no clamp": _in_layers("RelativePositions.call", "self.clamp_len > 0", "False"),
    "gradient into memory": lambda family: _all(
        _edited(layers, "prepend_memory", "ops.stop_gradient", ""),
        _edited(layers, "updated_memory", "ops.stop_gradient", ""),
    ),
    "memory + 1": _in_layers("updated_memory", "kept[:, -mem_len:]", "kept[:, -mem_len - 1 : -1]"),
    "clusters + 1": _in_layers(
        "AdaptiveEmbedding.call", "token_ids - start", "token_ids - start + 1"
    ),
    "no segments": _in_layers("RelativeAttention.call", "self.segments is not None", "False"),
    "buckets mirrored": _in_layers("symmetric_buckets", "distances < 0", "distances > 0"),
    "buckets narrower": _in_layers(
        "symmetric_buckets", "max_distance / exact", "max_distance / 2 / exact"
    ),
    "local reach + 1": _in_layers("local_mask", "<= reach", "<= reach + 1"),
    "rotated backwards": _in_layers("rotate", "[-x[..., half:], x", "[x[..., half:], -x"),
    "gate activated": _in_table("feed_forward/intermediate", "feed_forward/gate"),
    "one base": _in_wire("config.global_base", "config.local_base"),
    "log buckets narrower": _in_layers(
        "log_buckets", "(max_distance - 1) / exact", "max_distance / exact"
    ),
    "distances mirrored": _in_wire("distances + count", "count - distances"),
    "no scores of keys": _in_layers(
        "DisentangledScores.call", "by_query + ops", "by_query + 0.0 * ops"
    ),
    "queries as their keys": _in_layers(
        "DisentangledScores.call", "scores(query, self.key", "scores(query, self.query"
    ),
    "trigrams mirrored": _in_layers("Trigrams.call", "[after, x, before]", "[before, x, after]"),
    "padding trained": _in_wire("ops.stop_gradient", ""),
    "feed-forwards swapped": _in_layers(
        "BottleneckBlock._call", "zip(self.more,", "zip(self.more[::-1],"
    ),
    "no sum inside": _in_layers(
        "BottleneckBlock._call", "norm(part(inside) + inside)", "norm(part(inside))"
    ),
    "query sees itself": _in_wire(
        "attention_mask=mask,",
        "attention_mask=ops.logical_or(mask, ops.equal(distances, 0)),",
    ),
    "directions swapped": _in_table("forward", "backward"),
    "gates in another order": _in_layers(_LSTM, "candidate, keep,", "keep, candidate,"),
    "no forget bias": _in_layers(_LSTM, "keep + 1", "keep"),
    "cells not clipped": _in_layers(_LSTM, "self.cell_clip)", "0.0)"),
    "states not clipped": _in_layers(_LSTM, "self.projection_clip)", "0.0)"),
    "padding read": _in_layers(
        _LSTM,
        "ops.where(skip, hidden, after), ops.where(skip, cell, cell_after)",
        "after, cell_after",
    ),
    "gate mirrored": _in_layers(
        "Highway.call",
        "gate * self.transform(x) + (1 - gate)",
        "(1 - gate) * self.transform(x) + gate",
    ),
    "no sum of layers": _in_wire("states + x if i else states", "states"),
    "a sum in layer 0": _in_wire("states + x if i else states", "states + x"),
    "mix not normalized": _in_layers(
        "ScalarMix.call",
        "ops.softmax(ops.convert_to_tensor(self.scalars))",
        "self.scalars + 1 / 3",
    ),
    "no gamma": _in_layers("ScalarMix.call", "ops.convert_to_tensor(self.gamma) *", ""),
}
# Parts of a table of weights, and the mistakes of families that have them.
_OF_PARTS = {
    "embedding_norm": ("epsilon of embeddings",),
    "position_embedding": ("positions + 1",),
    "position_bias": ("u and v swapped", "no clamp", "gradient into memory", "memory + 1"),
    "embeddings_{c}": ("clusters + 1",),
    "segment_bias": ("no segments",),
    "relative_bias": ("buckets mirrored", "buckets narrower"),
    "feed_forward/gate": ("local reach + 1", "rotated backwards", "gate activated", "one base"),
    "attention": ("epsilon of layers", "no 1/√d", "mask ignored"),
    "mask_embedding": ("query sees itself",),
    "relative_norm": (
        *("log buckets narrower", "distances mirrored", "no scores of keys"),
        "queries as their keys",
    ),
    "wide_norm": ("trigrams mirrored", "padding trained", "feed-forwards swapped", "no sum inside"),
    "scalar_mix": (
        *("directions swapped", "gates in another order", "no forget bias", "cells not clipped"),
        *("states not clipped", "padding read", "gate mirrored", "no sum of layers"),
        *("a sum in layer 0", "mix not normalized", "no gamma"),
    ),
}
# The families in which a mistake can be made, if not all.
_WHERE: dict[str, Callable[[str], bool]] = {
    **{name: _has(part) for part, names in _OF_PARTS.items() for name in names},
    "q/k biases swapped": lambda family: _fused(family) or _has("query/bias")(family),
    "wrong GELU": _uses_gelu,
    "query not transposed": lambda family: _fused(family) or _has_square_query(family),
    "future attended to": _fused,
    # Its first block has no norm before the attention.
    "norms swapped": lambda family: (
        _has("attention_norm")(family) and not _has("feed_forward/gate")(family)
    ),
    "no relative shift": lambda family: (
        _has("position_bias")(family) or _has("relative_norm")(family)
    ),
}
_MEANING = """
* **norms swapped**, **q/k biases swapped**: in the family's table of names.
* **wrong GELU**: the tanh approximation instead of the exact function, or the reverse.
* **epsilon**: 1e-5 instead of 1e-12, and 1e-12 instead of larger values, in the norm of the
  embeddings or the norms of the layers.
* **query not transposed**: its kernel is square, so it loads anyway.
* Decoders store query, key and value in one tensor: in these, queries and keys are swapped
  completely, and the attention's output is transposed.
* **mask ignored**: queries attend to padding, and to later tokens in causal models.
* **memory + 1**: it ends one position too early. **clusters + 1**: ids within a cluster.
* **padding trained**: MobileBERT's token embeddings get gradients at padding.
* **no sum inside**: its feed-forwards before the last have no residual sum.
* **gate mirrored**: ELMo's highways. **padding read**: its LSTMs do not skip padding. **mix not
  normalized**, **no gamma**: with the same numbers at the start, so that gradients alone differ.
* –: does not apply to the family.
"""


def applies(family: str, name: str) -> bool:
    """Whether the family has the part that a mutation breaks."""
    return _WHERE.get(name, lambda family: True)(family)


# Tests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The result of a family's golden tests for one mutation.

    Attributes:
        variant: the golden that failed; None if all passed.
        quick: whether that golden is part of `make test`.
        outputs, gradients: the largest relative difference of each.
        error: the error, if it was not a difference.
    """

    variant: str | None = None
    quick: bool = False
    outputs: float = 0.0
    gradients: float = 0.0
    error: str = ""

    @property
    def caught(self) -> bool:
        return self.variant is not None and not self.error

    def __str__(self) -> str:
        if self.error:
            return f"**{self.error}**"
        if not self.caught:
            return "**survived**"
        where = "" if self.variant == "default" else f" ({self.variant})"
        return f"{self.outputs:.0e} / {self.gradients:.0e}{where}"


def goldens(family: str, quick: bool = False) -> list[Path]:
    """The family's goldens: default settings first, then others of `make test`, then the rest.

    Args:
        family: the name of the family.
        quick: whether to return only the tests of `make test`.
    """
    root = test_goldens.GOLDENS / family
    found = [path for path in test_goldens.CHECKPOINTS if path.parent == root]
    chosen = [path for path in found if path in test_goldens.QUICK] if quick else found
    by_turn = [(path not in test_goldens.QUICK, path.name != "default", path) for path in chosen]
    return [path for *_, path in sorted(by_turn)]


def run_test(directory: Path) -> Outcome:
    """Runs one golden test, and returns the largest differences in float64."""
    variant, quick = directory.name, directory in test_goldens.QUICK
    seen = {"outputs": 0.0, "gradients": 0.0}
    compare = parity.differences

    def differences(*args, **kwargs):
        found = compare(*args, **kwargs)
        for name, value in found.items():
            kind = "gradients" if "gradient" in name else "outputs"
            seen[kind] = max(seen[kind], value)
        return found

    with mock.patch.object(parity, "differences", differences), redirect_stdout(StringIO()):
        try:
            test_goldens.test_outputs_and_gradients(directory)
        except Exception as error:
            large = any(value > parity.TOLERANCE for value in seen.values())
            if isinstance(error, AssertionError) and large and "differ" in str(error):
                return Outcome(variant, quick, **seen)
            return Outcome(variant, quick, error=f"{type(error).__name__}: {error}".split("\n")[0])
    return Outcome(**seen)


def run(
    family: str, mutation: Callable[[str], AbstractContextManager], quick: bool = False
) -> Outcome:
    """Runs the family's goldens with the mutation, up to the first that fails."""
    outcome = Outcome()
    for directory in goldens(family, quick):
        with mutation(family):
            outcome = run_test(directory)
        if outcome.caught or outcome.error:
            break
    return outcome


# Report ---------------------------------------------------------------------------------------


def table(outcomes: dict[str, dict[str, Outcome]], clean: dict[str, Outcome]) -> str:
    """A Markdown table of families (rows) and mutations (columns)."""
    rows = [["family", "unbroken", *MUTATIONS], ["---"] * (len(MUTATIONS) + 2)]
    for family, found in outcomes.items():
        first = f"{clean[family].outputs:.0e} / {clean[family].gradients:.0e}"
        rows.append([family, first, *(str(found.get(name, "–")) for name in MUTATIONS)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def report(text: str, seconds: float) -> str:
    """The content of tools/results/mutations.md."""
    return (
        "# Mutations\n\n"
        f"`python -m tools.mutations`, {datetime.now(UTC):%Y-%m-%d}, {seconds:.0f} s on "
        f"{platform.machine()}, one process. Python {platform.python_version()}, TensorFlow "
        f"{tf.__version__}, Keras {keras.__version__}.\n\n"
        "Each cell: the largest relative difference of an output / of a gradient in the golden "
        "test that\nfailed, and the golden's name unless it is `default`. The tolerance is "
        f"{parity.TOLERANCE:.0e}.\n\n{text}{_MEANING}"
    )


def counts(outcomes: dict[str, dict[str, Outcome]]) -> str:
    """The number of mistakes that each of the two selections of tests catches."""
    found = [outcome for family in outcomes.values() for outcome in family.values()]
    caught = [outcome for outcome in found if outcome.caught]
    return (
        f"Of {len(found)} mistakes `make test` catches {sum(o.quick for o in caught)}, "
        f"`make test-all` {len(caught)}."
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*", choices=[*parity.FAMILIES, []])
    parser.add_argument("--selection", choices=["test", "test-all"], default="test-all")
    options = parser.parse_args(arguments)
    names, quick = options.families or parity.FAMILIES, options.selection == "test"
    start = time.monotonic()
    bar = keras.utils.Progbar(len(names) * (len(MUTATIONS) + 1), unit_name="mutation")
    outcomes: dict[str, dict[str, Outcome]] = {}
    clean: dict[str, Outcome] = {}
    for family in names:
        clean[family] = run_test(goldens(family)[0])  # without a mutation, which must pass
        bar.add(1)
        outcomes[family] = {}
        for name, mutation in MUTATIONS.items():
            if applies(family, name):
                outcomes[family][name] = run(family, mutation, quick)
            bar.add(1)
    text = table(outcomes, clean)
    print(text)
    if not options.families and not quick:
        text = f"{counts(outcomes)}\n\n{text}"
        RESULT.write_text(report(text, time.monotonic() - start), "utf-8")
    survivors = [
        f"{family}: {name}: {outcome}"
        for family, found in outcomes.items()
        for name, outcome in found.items()
        if not outcome.caught
    ]
    survivors += [
        f"{family}: fails without a mutation"
        for family, outcome in clean.items()
        if outcome.variant or outcome.error
    ]
    print(counts(outcomes))
    print("\n".join(survivors) or "Every mutation was caught.")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
