"""The base class of the tokenizers: names, ids, shapes, special tokens in text, files."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from bertfam_tf.hints import Hinted
from bertfam_tf.names import unexpected
from bertfam_tf.text import presets
from bertfam_tf.text.files import (
    CONFIG_FILE,
    check_added_tokens,
    errors_name_files,
    index_of_pieces,
    read_special_tokens,
    read_tokenizer_config,
    stated_special_tokens,
    truncates_left,
    write_json,
)
from bertfam_tf.text.kernels.graph import Pieces, TextLike, over_any_rank, unlikely
from bertfam_tf.text.special_tokens import (
    NO_SPECIAL_TOKENS,
    ROLES,
    SPECIAL_TOKEN_FIELDS,
    Layout,
    SpecialTokens,
    flat,
    grouped,
    special_config,
)
from bertfam_tf.text.tokenizers.matching import SpecialTokenMatcher, matcher, tokens_in_text
from bertfam_tf.validation import one_of


@dataclasses.dataclass(eq=False)
class State:
    """What tokenizers of one vocabulary share; tf.Module would wrap these as attributes.

    Attributes:
        pieces: the vocabulary.
        ids: the id of each piece.
        options: the tokenizer's options.
        in_languages: the tokenizers that ``Tokenizer.in_language`` has created, by language.
    """

    pieces: list[str]
    ids: dict[str, int]
    options: dict[str, Any]
    in_languages: dict[str, Any] = dataclasses.field(default_factory=dict)


def _id_of(role: str) -> Any:
    """Returns a property of ``Tokenizer``."""
    text = f"The id of ``{role}_token``. Raises ValueError if there is none."
    return property(lambda tokenizer: tokenizer.special_id(role), doc=text)


class Tokenizer(Hinted, tf.Module):
    """Converts text to piece ids and byte offsets, entirely in the graph.

    A subclass implements splitting plain text into pieces (``_encode``), joining pieces into text
    (``_join``), and its files (``_write_files``, ``_read_files``). Works eagerly, in
    ``tf.data``, ``tf.function`` and SavedModels. Input that is not UTF-8 is read as
    ``bytes.decode("utf-8", errors="replace")`` reads it.

    Args:
        pieces: the vocabulary in the order of the ids.
        special_tokens: the special tokens.
        layout: their positions in packed texts.
        options: the subclass's other arguments, except the vocabulary.
        name: the name of the module.
        source: the name of the vocabulary, for error messages.

    Raises:
        ValueError: if the vocabulary repeats a piece, lacks ``unk_token`` or an additional special
            token, or a special token cannot be found in text (SentencePiece's and GPT's must begin
            and end with ASCII punctuation, with their first characters nowhere else in one).
    """

    # The algorithm, as in ``registry.TokenizerSpec``.
    kind: ClassVar[str]
    default_special_tokens: ClassVar[SpecialTokens] = NO_SPECIAL_TOKENS
    # Whether the graph can run in TFLite.
    has_tflite_kernels: ClassVar[bool] = False
    # The kind of the published classes whose special tokens it may have; None for its own.
    _preset_kind: ClassVar[str | None] = None
    # Keys of tokenizer_config.json -> names of arguments.
    _config_keys: ClassVar[Mapping[str, str]] = {}
    # Arguments of ``_read_files``.
    _file_options: ClassVar[tuple[str, ...]] = ()
    # Whether files that do not determine a published class are rejected.
    _needs_preset: ClassVar[bool] = False
    # Whether special tokens may begin, end and overlap in any way.
    _any_special_token: ClassVar[bool] = False

    def __init__(
        self,
        pieces: Sequence[str],
        special_tokens: SpecialTokens,
        layout: Layout,
        options: Mapping[str, Any],
        *,
        name: str,
        source: str = "the vocabulary",
    ) -> None:
        super().__init__(name=name)
        ids = index_of_pieces(pieces, source, special_tokens.unk_token)
        self.special_tokens = special_tokens
        self.layout = layout
        self._state = State(list(pieces), ids, dict(options))
        self._matcher = self._make_matcher()
        # If the tokenizer is built while a function is traced, its tensors must not become part of
        # that function's graph.
        with tf.init_scope():
            self._texts = tf.constant(self._state.pieces)
        self._ids, self._ids_and_offsets = self._functions()

    def _functions(self) -> tuple[Any, Any]:
        """Returns traced functions of string [n], which make eager calls as fast as in a graph."""
        signature = [tf.TensorSpec([None], tf.string)]
        return (
            tf.function(lambda texts: self._ragged(texts, False), signature, autograph=False),
            tf.function(lambda texts: self._ragged(texts, True), signature, autograph=False),
        )

    # Implemented by subclasses.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Splits texts, string [n], without special tokens.

        Returns:
            Their pieces; ``starts`` and ``ends``, int32 bytes of the texts, if ``offsets``, else
            None.
        """
        raise NotImplementedError

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Joins pieces, ragged integer [batch, (pieces)], into text, string [batch]."""
        raise NotImplementedError

    def _finish(self, pieces: Pieces) -> Pieces:
        """Adjusts pieces with offsets after special tokens have been found."""
        return pieces

    def _make_matcher(self) -> SpecialTokenMatcher | None:
        tokens = tokens_in_text(self.special_tokens, self._state.ids)
        return matcher(tokens, self.special_tokens, self._state.ids, self._any_special_token)

    def _may_contain_special(self, texts: tf.Tensor, pieces: Pieces) -> tf.Tensor:
        """Returns bool, whether special tokens may be in the texts."""
        assert self._matcher is not None
        return self._matcher.may_be_in(texts, in_tflite=self.has_tflite_kernels)

    def _write_files(self, directory: Path) -> dict[str, Any]:
        """Writes the vocabulary; returns the content of tokenizer_config.json, except class and
        special tokens."""
        raise NotImplementedError

    @classmethod
    def _read_files(cls, path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
        """Reads the vocabulary.

        Args:
            path: the argument of ``load``, a directory or a file.
            folder: the directory, or the directory of the file.

        Returns:
            The arguments that the files define, and the file or directory to name in errors. The
            argument ``added`` is ``tokenizer_json.AddedTokens``, if there are any.
        """
        raise NotImplementedError

    @classmethod
    def _stated(
        cls, config: dict[str, Any], path: Path, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the arguments that ``config``, the content of tokenizer_config.json, defines."""
        stated = {ours: config[key] for key, ours in cls._config_keys.items() if key in config}
        return stated_special_tokens(config, path) | stated

    @classmethod
    def _fits(cls, special: SpecialTokens, arguments: Mapping[str, Any], folder: Path) -> bool:
        """Returns whether files may belong to a published class with these special tokens."""
        return set(special) <= set(arguments["vocabulary"])

    def _is_preset(self, options: Mapping[str, Any]) -> bool:
        """Returns whether the tokenizer is equivalent to a published class with these options."""
        return True

    @property
    def token_shape(self) -> tuple[int, ...]:
        """The shape of a token's ids: (), or (characters,) for models that read characters."""
        return ()

    @property
    def vocabulary(self) -> list[str]:
        """The pieces, in the order of their ids."""
        return list(self._state.pieces)

    @property
    def vocab_size(self) -> int:
        """The number of pieces."""
        return len(self._state.pieces)

    def special_id(self, role: str) -> int:
        """Returns the id of the special token with a role, one of ``ROLES``.

        Raises:
            ValueError: if this tokenizer has no such token, or its vocabulary lacks it.
        """
        one_of("role", role, ROLES)
        token = self.special_tokens.of(role)
        if token is None:
            raise ValueError(f"this {type(self).__name__} has no {role}_token.")
        return self.token_to_id(token)

    unk_id, cls_id, sep_id, pad_id, mask_id, bos_id, eos_id = map(_id_of, ROLES)

    @property
    def special_ids(self) -> dict[str, Any]:
        """The ids of the special tokens that the vocabulary has, by role."""
        tokens = {role: self.special_tokens.of(role) for role in ROLES}
        ids = self._state.ids
        return {role: ids[token] for role, token in tokens.items() if token in ids}

    def token_to_id(self, token: str) -> int:
        """Returns the id of a piece, or raises ValueError if it is not in the vocabulary."""
        if token not in self._state.ids:
            raise ValueError(
                f"{token!r} is not one of the {self.vocab_size} pieces of the vocabulary."
            )
        return self._state.ids[token]

    def id_to_token(self, ids: int | tf.Tensor | tf.RaggedTensor) -> Any:
        """Returns the piece of each id: a ``str`` for an ``int``, else strings of the same shape.

        Raises:
            ValueError: if an ``int`` outside of the vocabulary.
            tf.errors.InvalidArgumentError: a tensor with such an id.
        """
        if isinstance(ids, int | np.integer):
            if not 0 <= ids < self.vocab_size:
                raise ValueError(f"id {ids} is outside the vocabulary, 0 to {self.vocab_size - 1}.")
            return self._state.pieces[ids]
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(tf.gather(self._texts, ids.flat_values))
        return tf.gather(self._texts, ids)

    def in_language(self, language: str) -> Tokenizer:
        """Returns the tokenizer of texts of a language: itself if its rules depend on none.

        Args:
            language: ISO 639-1 code. One that the tokenizer has no rules for changes nothing.

        Returns:
            A tokenizer of the same vocabulary, which shares its tables.
        """
        return self

    # Text to pieces, pieces to text.

    @tf.autograph.experimental.do_not_convert
    def tokenize(self, text: TextLike) -> tf.Tensor | tf.RaggedTensor:
        """Splits text into piece ids.

        Args:
            text: string [batch], or a ``str``, a list, a scalar, or a tensor or ragged tensor of
                more dimensions.

        Returns:
            int32 ids: ragged [batch, (pieces)]; for a scalar a tensor [pieces]; in general ragged
            with one dimension more than ``text``.

        Raises:
            ValueError: if the rank of ``text`` is unknown, or a string has a lone surrogate.
            TypeError: ``text`` does not have dtype string.
        """
        return over_any_rank(text, self._ids.get_concrete_function())[0]

    __call__ = tokenize

    @tf.autograph.experimental.do_not_convert
    def tokenize_with_offsets(self, text: TextLike) -> tuple[Any, Any, Any]:
        """Splits text into piece ids and the bytes of the text that each piece covers.

        Args:
            text: the same as for ``tokenize``.

        Returns:
            ``(ids, starts, ends)``, int32, each with the shape that ``tokenize`` returns; byte
            offsets in the original text, ``ends`` exclusive.

        Raises:
            ValueError, TypeError: as ``tokenize``.
        """
        function = self._ids_and_offsets.get_concrete_function()
        ids, starts, ends = over_any_rank(text, function)
        return ids, starts, ends

    def detokenize(self, ids: Any) -> tf.Tensor:
        """Joins pieces into text.

        Args:
            ids: integers, ragged [batch, (pieces)], dense [batch, pieces], or [pieces].

        Returns:
            string [batch], or a scalar for [pieces].

        Raises:
            tf.errors.InvalidArgumentError: an id outside of the vocabulary.
            ValueError: ``ids`` has neither one dimension nor two.
        """
        if not isinstance(ids, tf.Tensor | tf.RaggedTensor):
            ids = tf.ragged.constant(ids, tf.int32)
        rank = ids.shape.rank
        if rank == 1:
            return self.detokenize(ids[tf.newaxis])[0]
        if rank != 2:
            raise ValueError(f"ids must have shape [pieces] or [batch, pieces], got rank {rank}.")
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.RaggedTensor.from_tensor(ids)
        return self._join(ids)

    # Config and files.

    def get_config(self) -> dict[str, Any]:
        """Returns the argument of ``from_config``: the vocabulary and all other arguments, with the
        special tokens as separate fields."""
        special = dataclasses.asdict(self.special_tokens)
        return self._vocabulary_config() | self._state.options | special | {"layout": self.layout}

    def _vocabulary_config(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Builds a tokenizer from its arguments and fields of ``SpecialTokens``, by name.

        Args:
            config: the result of ``get_config``, or such a dict; missing entries have their
                defaults.
        """
        return cls(**grouped(dict(config), cls.default_special_tokens))

    def __reduce__(self) -> tuple[Any, ...]:
        # Graphs cannot be copied or pickled, but the arguments can; Keras copies its layers.
        return type(self).from_config, (self.get_config(),)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the vocabulary's files and ``tokenizer_config.json``, as Hugging Face names them.

        Args:
            directory: the directory to write; created if missing.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        config = self._write_files(path)
        name = presets.class_name(self.kind, self._is_preset) or type(self).__name__
        write_json(
            path / CONFIG_FILE,
            {"tokenizer_class": name, **config, **special_config(self.special_tokens, self.layout)},
        )

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], *, preset: str | None = None, **options: Any
    ) -> Self:
        """Reads a tokenizer from the files that the class's docstring lists.

        Each argument is taken from the first of these that defines it: ``options``,
        ``tokenizer_config.json``, ``special_tokens_map.json``, the vocabulary files, the preset,
        the constructor's default.

        Args:
            directory: the directory, or one of the tokenizer's files in it.
            preset: the published class whose arguments are used where nothing else defines them,
                "" for none. None for the first of these that exists: the class named in
                ``tokenizer_config.json`` or ``config.json``, the class of the ``model_type`` in
                ``config.json``, a class whose special tokens are in the vocabulary.
            **options: arguments of the constructor, or fields of ``SpecialTokens``.

        Raises:
            FileNotFoundError: if there are no such files.
            ValueError: if a file is damaged or of another kind, or the preset is unknown.
            TypeError: for an argument that does not exist.
        """
        known = {*inspect.signature(cls).parameters, *SPECIAL_TOKEN_FIELDS, *cls._file_options}
        if not options.keys() <= known:
            raise TypeError(unexpected(cls.__name__, options.keys() - known, known))
        return cls._load(directory, preset=preset, **options)

    @classmethod
    @errors_name_files
    def _load(cls, directory: Any, *, preset: str | None, **options: Any) -> Self:
        path = Path(directory)
        folder = path.parent if path.is_file() else path
        own = {name: options.pop(name) for name in cls._file_options if name in options}
        arguments, source = cls._read_files(path, folder, **own)
        config_file = folder / CONFIG_FILE
        config = read_tokenizer_config(config_file) if config_file.is_file() else {}
        config |= read_special_tokens(folder, config)
        published = presets.find(
            cls._preset_kind or cls.kind,
            cls.__name__,
            folder,
            preset,
            lambda special: cls._fits(special, arguments, folder),
            required=cls._needs_preset,
        )
        added = arguments.pop("added", None)
        configured = cls._stated(config, config_file, {**published, **arguments})
        if added is not None and presets.is_generic(folder):
            # A generic class only changes the special tokens of a tokenizer.json.
            fields = configured.keys() & (SPECIAL_TOKEN_FIELDS | {"layout"})
            configured = {name: configured[name] for name in fields}
        stated = {**configured, **flat(options)}
        arguments = {**cls._published(published, arguments), **arguments, **stated}
        if added is not None:
            pad_left = {"left": True, "right": False}.get(str(config.get("padding_side")))
            arguments = added.completed(arguments, stated, cls.default_special_tokens, pad_left)
        arguments = grouped(arguments, cls.default_special_tokens)
        if "vocabulary" in arguments:
            unk_token = arguments["special_tokens"].unk_token
            index_of_pieces(arguments["vocabulary"], str(source), unk_token)
        try:
            tokenizer = cls(**arguments)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        if "layout" not in options and (config.get("truncation_side") or "layout" not in stated):
            left = truncates_left(folder, config)  # of our files that transformers saved, too
            tokenizer.layout = dataclasses.replace(tokenizer.layout, truncate_left=left)
        check_added_tokens(folder, tokenizer._state.ids)
        return tokenizer

    @classmethod
    def _published(
        cls, options: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Returns the options of a preset that fit the vocabulary."""
        return options

    # The graph.

    def _ragged(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.RaggedTensor, ...]:
        """Tokenizes string [n]; returns ids, or ids, starts and ends, each ragged [n, (pieces)]."""
        # Traced once, for whole texts and for the text between special tokens.
        traced = tf.function(
            lambda texts: self._encode(texts, offsets).tensors(),
            [tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

        def encode(texts: tf.Tensor) -> Pieces:
            return Pieces.from_tensors(traced(texts))

        plain = texts
        if self._any_special_token and self._matcher and not self.has_tflite_kernels:
            # Such tokens are frequent, so texts with them are not split twice; TFLite cannot.
            plain = tf.where(self._matcher.may_be_in(texts), "", texts)
        pieces = self._with_special_tokens(encode(plain), texts, encode)
        if not offsets:
            return (pieces.ragged(pieces.ids),)
        pieces = self._finish(pieces)
        return tuple(pieces.ragged(part) for part in (pieces.ids, pieces.starts, pieces.ends))

    def _with_special_tokens(
        self,
        pieces: Pieces,
        texts: tf.Tensor,
        encode: Callable[[tf.Tensor], Pieces],
    ) -> Pieces:
        """Adds the special tokens that occur in texts to pieces that were found without them.

        Args:
            pieces: the pieces of the texts.
            texts: string [n].
            encode: splits the strings, [n], between special tokens, with offsets if ``pieces`` has
                them.
        """
        special = self._matcher
        if special is None:
            return pieces
        trim_offsets = bool(self._state.options.get("trim_offsets"))

        def encode_with_special(*tensors: tf.Tensor) -> list[tf.Tensor]:
            return special.encode_around(tensors[-1], encode, trim_offsets).tensors()

        may_contain = self._may_contain_special(texts, pieces)
        return Pieces.from_tensors(
            unlikely(may_contain, encode_with_special, pieces.tensors(), [texts])
        )
