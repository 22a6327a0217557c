"""Runs the signatures of a loaded SavedModel."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from bertfam_tf.export.runtime import capi, tensor_protos
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

DEFAULT_SIGNATURE = "serving_default"

Inputs = Mapping[str, np.ndarray | tensor_pb2.TensorProto]


class ServableLike(Protocol):
    """The interface of a loaded model: a ``Servable``, or a server's wrapper around one.

    A wrapper, for example for dynamic batching, is created before the warm-up requests run, and
    they run in it. When its version is unloaded, requests in progress may still hold a reference.
    A wrapper therefore has to free its resources (threads, queues) with its last reference, for
    example with ``weakref.finalize``.
    """

    @property
    def signatures(self) -> Mapping[str, meta_graph_pb2.SignatureDef]:
        """As ``Servable.signatures``."""

    @property
    def model(self) -> str:
        """As ``Servable.model``."""

    def run(
        self,
        signature: str,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        timeout_ms: int = 0,
    ) -> dict[str, np.ndarray]:
        """Runs a signature; see ``Servable.run``."""

    def run_together(
        self, signatures: Sequence[str], inputs: Inputs, *, timeout_ms: int = 0
    ) -> list[dict[str, np.ndarray]]:
        """Runs several signatures; see ``Servable.run_together``."""


class Servable:
    """A loaded SavedModel. Thread-safe; it is unloaded with its last reference.

    Attributes:
        signatures: name to SignatureDef, including ``__saved_model_init_op`` if there is one.
        model: the name under which a server serves it; empty outside of servers.
    """

    def __init__(self, session: capi.Session, model: str = "") -> None:
        """Initializes the servable.

        Args:
            session: the session that holds the model.
            model: the model's name.
        """
        self.model = model
        meta_graph = meta_graph_pb2.MetaGraphDef.FromString(session.meta_graph)
        self.signatures = dict(meta_graph.signature_def)
        self._session = session

    def run(
        self,
        signature: str,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        timeout_ms: int = 0,
    ) -> dict[str, np.ndarray]:
        """Runs a signature and returns its outputs.

        Args:
            signature: the key; empty means ``serving_default``.
            inputs: input name to value. Shapes are not compared with the signature.
            outputs: names of the outputs to compute; empty means all.
            timeout_ms: the run is cancelled after this time; 0 means no limit.

        Returns:
            Output name to array; strings are object arrays of bytes.

        Raises:
            ServingError: with Serving's code and text: FAILED_PRECONDITION for an unknown
                signature; INVALID_ARGUMENT for missing or additional inputs, values that are no
                arrays, wrong dtypes, and unknown or duplicate outputs; any error of the graph.
        """
        definition = self._definition(signature)
        fetches = [_fetches(definition, outputs)]
        return self._run(_feeds(definition, inputs), fetches, timeout_ms)[0]

    def run_together(
        self, signatures: Sequence[str], inputs: Inputs, *, timeout_ms: int = 0
    ) -> list[dict[str, np.ndarray]]:
        """Runs several signatures with the same inputs in a single run of the graph.

        Args:
            signatures: their keys, not empty.
            inputs: input name to value, for each of the signatures.
            timeout_ms: the same as in ``run``.

        Returns:
            The outputs of each signature, as ``run`` returns them.

        Raises:
            ServingError: as ``run``.
        """
        definitions = [self._definition(signature) for signature in signatures]
        fetches = [_fetches(definition, ()) for definition in definitions]
        # Signatures of a SavedModel may share placeholders, which can be fed only once.
        feeds = {feed.tensor: feed for d in definitions for feed in _feeds(d, inputs)}
        return self._run(list(feeds.values()), fetches, timeout_ms)

    def close(self) -> None:
        """Cancels runs in progress with CANCELLED; later runs fail."""
        self._session.close()

    def _definition(self, signature: str) -> meta_graph_pb2.SignatureDef:
        signature = signature or DEFAULT_SIGNATURE
        if signature not in self.signatures:
            raise ServingError(
                Code.FAILED_PRECONDITION, f'Serving signature key "{signature}" not found.'
            )
        return self.signatures[signature]

    def _run(
        self, feeds: Sequence[capi.Feed], fetches: Sequence[Mapping[str, str]], timeout_ms: int
    ) -> list[dict[str, np.ndarray]]:
        tensors = sorted({tensor for some in fetches for tensor in some.values()})
        arrays = dict(zip(tensors, self._session.run(feeds, tensors, timeout_ms), strict=True))
        return [{name: arrays[tensor] for name, tensor in some.items()} for some in fetches]


def _fetches(signature: meta_graph_pb2.SignatureDef, outputs: Sequence[str]) -> Mapping[str, str]:
    """Output name to tensor name."""
    seen: set[str] = set()
    for name in outputs:
        if name not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs expected to be in "
                f"the set {{{_join(signature.outputs)}}}."
            )
        if name in seen:
            raise invalid(f"duplicate output tensor alias: {name}")
        seen.add(name)
    return {name: signature.outputs[name].name for name in outputs or signature.outputs}


def _feeds(signature: meta_graph_pb2.SignatureDef, inputs: Inputs) -> list[capi.Feed]:
    sent, expected, defaults = set(inputs), set(signature.inputs), signature.defaults
    if len(sent) > len(expected) or (len(sent) < len(expected) and not defaults):
        raise invalid(
            f"input size does not match signature: {len(sent)}!={len(expected)} "
            f"len({{{_join(sent)}}}) != len({{{_join(expected)}}}). "
            f"Sent extra: {{{_join(sent - expected)}}}. "
            f"Missing but required: {{{_join(expected - sent)}}}."
        )
    feeds = []
    for name, info in sorted(signature.inputs.items()):
        if name not in inputs and name not in defaults:
            raise invalid(
                f"Signature input alias: {name}(feed name: {info.name}) not found in request and "
                f"no default value provided. Inputs expected to be in the request "
                f"{{{_join(sent)}}}, or default input alias set: {_join(defaults)}"
            )
        value = inputs[name] if name in inputs else defaults[name]
        proto = value if isinstance(value, tensor_pb2.TensorProto) else _proto(name, value)
        feeds.append(capi.Feed(name, info.name, proto))
    if not sent <= expected:
        raise invalid(
            f"Inputs contains invalid name. Used request inputs: {_join(sent & expected)}, "
            f"request input: {_join(sent)}"
        )
    return feeds


def _proto(name: str, array: np.ndarray) -> tensor_pb2.TensorProto:
    proto = tensor_pb2.TensorProto()
    try:
        tensor_protos.write(array, proto, as_content=True)
    except (AttributeError, TypeError):  # no array, or its strings are no bytes
        kinds = sorted({type(item).__name__ for item in np.ravel(np.asarray(array, object))})
        raise invalid(
            f"input {name!r} must be an array, of texts an object array of bytes; got "
            f"{type(array).__name__} of {', '.join(kinds)}"
        ) from None
    return proto


def _join(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
