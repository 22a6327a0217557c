"""Keras finds the package's classes in saved models, without an import of them."""

import pkgutil
import subprocess
import sys
from importlib import import_module

import keras
import pytest

import bertfam_tf
from bertfam_tf import keras_objects

_FORMER = ("cli", "config", "learner", "serve", "train")  # commands, and names of version 0.1


def test_every_registered_class_is_listed():
    for module in pkgutil.walk_packages(bertfam_tf.__path__, "bertfam_tf."):
        if module.name.split(".")[1] not in _FORMER:
            import_module(module.name)
    registered = keras.saving.get_custom_objects()
    ours = {name: x for name, x in registered.items() if name.startswith("bertfam_tf>")}
    assert ours.keys() == {f"bertfam_tf>{name}" for name in keras_objects.HOME}
    assert not [x for x in ours.values() if isinstance(x, keras_objects.Deferred)]


@pytest.mark.extended
@pytest.mark.parametrize("order", ["bertfam_tf, keras", "keras, bertfam_tf"])
def test_registers_whichever_is_imported_first(order):
    name = "bertfam_tf>WarmupLinearDecay"
    code = (
        f"import sys; import {order}; registered = keras.saving.get_registered_object('{name}'); "
        "assert 'bertfam_tf.training' not in sys.modules; "
        "print(registered.from_config({'peak': 2.0, 'warmup_steps': 0, 'total_steps': None}).peak)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "2.0\n"
