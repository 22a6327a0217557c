"""A warning about versions of JAX that are slow on GPUs."""

import sys
import warnings
from types import SimpleNamespace

import pytest

from bertfam_tf.training import jax_versions


@pytest.mark.parametrize(
    ("version", "backend", "slow"),
    [
        ("0.10.1", "gpu", False),
        ("0.10.2", "gpu", True),
        ("0.11.0", "gpu", True),
        ("0.11.0", "cpu", False),
        ("0.11.1", "gpu", False),
        ("0.11.1.dev20261101", "gpu", False),
        ("0.12.0rc1", "gpu", False),
    ],
)
def test_by_version(version, backend, slow, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(default_backend=lambda: backend))
    monkeypatch.setitem(sys.modules, "jaxlib", SimpleNamespace(__version__=version))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax_versions.warn_if_slow()
    assert [str(each.message).startswith(f"jaxlib {version} sums") for each in found] == [
        True
    ] * slow
