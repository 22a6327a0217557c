"""The part of a task that stores it: configs, files and exports."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import keras

import bertfam_tf
from bertfam_tf import files
from bertfam_tf.layers.fused import quantization_error
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import set_trainable, trainable_config
from bertfam_tf.tasks import publish, storage
from bertfam_tf.tasks.components import Signature
from bertfam_tf.tasks.hub_card import CardInfo
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.serialization import tokenizer_files, tokenizer_from_files
from bertfam_tf.validation import one_of

_HDF5 = (".h5", ".hdf5")


class TaskStorage:
    """The part of a ``Task`` that stores it: Keras' config, files, exports."""

    backbone: Backbone
    tokenizer: Tokenizer
    options: Any
    name: str
    trainable: bool
    __call__: Callable[..., Any]

    def signatures(self: Any, **options: Any) -> dict[str, Signature]:
        """Returns the functions of an export by name, as TF Serving calls them.

        Args:
            **options: ``attention``, ``label_names``, and the options of this task's export, which
                the class documents.

        Raises:
            TypeError, ValueError: as ``export`` does.
        """
        from bertfam_tf.export.signatures import signatures

        return signatures(self, **options)

    # Not a property: Keras would follow it back to the task when it stores weights.
    def served_tasks(self) -> dict[str, Self]:
        """Returns the tasks of an export by the names of their signatures: here only this task."""
        return {"": self}

    def describe(self: Any) -> dict[str, Any]:
        """Returns what ``save`` and ``export`` store besides weights and tokenizer."""
        return {
            "bertfam_tf": bertfam_tf.__version__,
            "task": type(self).__name__,
            "family": self.backbone.family,
            "config": self.backbone.config.to_dict(),
            "options": self.options.stored(),
        }

    def quantize(self: Any, *args: Any, **kwargs: Any) -> None:
        """Raises a ``ValueError``: ``export`` and ``export_tflite`` write quantized models."""
        raise quantization_error(f"The model {self.name!r}")

    def get_config(self) -> dict[str, Any]:
        """Returns the config of a new task like this one: backbone, tokenizer with its files, and
        options; ``from_config`` builds it with random weights."""
        return {
            "backbone": self.backbone.get_config(),
            "tokenizer": tokenizer_files(self.tokenizer),
            "options": self.options.stored(),
            "name": self.name,
            **trainable_config(self),
        }

    @classmethod
    def from_config(cls: Any, config: dict[str, Any], custom_objects: Any = None) -> Any:
        task = cls(
            Backbone.from_config(config["backbone"]),
            tokenizer_from_files(config["tokenizer"]),
            **config["options"],
            name=config.get("name"),
        )
        set_trainable(task, config)
        return task

    def save(self: Any, directory: str | Path, overwrite: bool = True) -> None:
        """Writes weights, config and tokenizer into ``directory``; ``bertfam_tf.load`` reads it.

        The directory is written atomically; an existing one is only replaced by a complete one.
        ``NAME.keras`` is written as a file in Keras' format, for ``bertfam_tf.load`` and, after
        ``import bertfam_tf``, ``keras.models.load_model``.

        Raises:
            FileExistsError: if it exists and ``overwrite`` is false, or it is not a saved task.
            OSError: if writing fails, for example on a full disk; an existing directory is kept.
            ValueError: for the name of an HDF5 file.
        """
        if keras_format(directory):
            with files.atomic(directory, replace=overwrite) as path:
                keras.saving.save_model(self, path)
        else:
            storage.save(self, Path(directory), overwrite)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        # A copy, also by way of a pickle, has what ``save`` writes, and is not compiled.
        return storage.unpacked, (storage.packed(self),)

    def save_pretrained(
        self: Any,
        directory: str | Path,
        *,
        language: str | Sequence[str] | None = None,
        license: str | None = None,
        metrics: Mapping[str, Any] | None = None,
        base_model: str | None = None,
        dataset: str | None = None,
    ) -> None:
        """Writes a model that transformers reads: backbone, head, labels and tokenizer.

        ``transformers.pipeline(task, model=directory)`` gives the same answers, and so does this
        class's ``from_pretrained``. Options that choose answers and are not part of a model
        there are omitted: a threshold, ``top_k``, windows and the like. ``max_length`` becomes the
        tokenizer's ``model_max_length``. ``README.md`` is a model card, as the Hugging Face hub
        shows it: labels, scores, and how to use the model.

        Args:
            directory: new or empty; it is written atomically.
            language: the code of the texts' language, such as ``"en"``, or several, for the card.
            license: an identifier of the hub, such as ``"apache-2.0"``.
            metrics: scores by name, such as the content of a run's ``metrics.json``.
            base_model: the hub id of the checkpoint that was fine-tuned.
            dataset: the name of the data that ``metrics`` are for.

        Raises:
            FileExistsError: if it exists and is not an empty directory.
            CheckpointError: for options that the format cannot express, a tokenizer without an
                equivalent in transformers, or weights that are not finite. Nothing is written
                then.
        """
        info = CardInfo(language, license, metrics or {}, base_model, dataset)
        publish.publish(self, directory, info)

    def push_to_hub(
        self: Any,
        repo_id: str,
        *,
        token: str | bool | None = None,
        private: bool | None = None,
        commit_message: str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        api: Any = None,
        **card: Any,
    ) -> str:
        """Uploads what ``save_pretrained`` writes to the Hugging Face hub.

        Args:
            repo_id: the repository, such as ``"organisation/name"``; it is created if missing.
            token: an access token; None for the stored one.
            private: whether a new repository is private; None for the organisation's default.
            commit_message, revision, create_pr: the same as for ``HfApi.upload_folder``.
            api: an object with the methods of ``huggingface_hub.HfApi`` that is used in its place.
            **card: ``language``, ``license``, ``metrics``, ``base_model`` and ``dataset``, the same
                as for ``save_pretrained``.

        Returns:
            The URL of the commit.

        Raises:
            CheckpointError: as ``save_pretrained`` does; nothing is uploaded then.
            TypeError: for an argument that does not exist.
        """
        if api is None:
            from huggingface_hub import HfApi

            api = HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "model"
            # What cannot be written is an error before the repository is created.
            publish.publish(self, directory, CardInfo(**card), repo_id)
            api.create_repo(repo_id=repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=directory,
                commit_message=commit_message or f"Upload a {type(self).__name__} of bertfam_tf",
                revision=revision,
                create_pr=create_pr,
            )
        return str(commit)

    def export(
        self: Any,
        directory: str | Path,
        version: int | None = None,
        *,
        format: str = "tf_saved_model",
        **kwargs: Any,
    ) -> Path:
        """Writes a SavedModel for TF Serving: ``directory/<version>``, the next one if None.

        Args:
            directory: the model's base path; for ``"litert"`` the file, which ends in ``.tflite``,
                and for ``"onnx"`` the file, which ends in ``.onnx``.
            version: a number.
            format: ``"tf_saved_model"``; ``"litert"``, for which ``export_tflite`` documents the
                arguments; or ``"onnx"``, for which ``bertfam_tf.export.export_onnx`` does.
            **kwargs: ``label_names=True`` to return the names of a classifier's scores too;
                ``dtype``, ``calibration``, ``fallback``, ``batching`` and ``metrics``, as
                ``bertfam_tf.export.export_saved_model`` documents them, and the arguments of this
                task's ``signatures``.

        Raises:
            FileExistsError, ValueError, ExportError: as ``export_saved_model`` does.
            ValueError: for another format.
        """
        from bertfam_tf.export import export_onnx, export_saved_model

        one_of("format", format, ("tf_saved_model", "litert", "onnx"))
        if format != "tf_saved_model":
            if version is not None:
                raise ValueError(f"version must be None for format={format!r}, got {version}.")
            if format == "onnx":
                return export_onnx(self, directory, **kwargs)
            return self.export_tflite(directory, **kwargs)
        return export_saved_model(self, directory, version=version, **kwargs)

    def export_tflite(self: Any, file: str | Path, **kwargs: Any) -> Path:
        """Writes a ``.tflite`` file for mobile devices, as ``bertfam_tf.export.export_tflite``.

        Args:
            file: the path, which ends in ``.tflite``.
            **kwargs: ``inputs``, ``quantize``, ``length`` and ``calibration``.

        Raises:
            ValueError, ExportError: as ``bertfam_tf.export.export_tflite`` does.
        """
        from bertfam_tf.export import export_tflite

        return export_tflite(self, file, **kwargs)


def keras_format(path: str | Path) -> bool:
    """Returns whether a name is for Keras' own format, ``NAME.keras``.

    Raises:
        ValueError: for the name of an HDF5 file.
    """
    suffix = Path(path).suffix
    if suffix in _HDF5:
        raise ValueError(
            f"A model is saved as a directory or as NAME.keras, got {path}. HDF5 files "
            "(save_weights('NAME.weights.h5')) have weights only."
        )
    return suffix == ".keras"
