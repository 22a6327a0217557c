"""Fixtures for tests of training."""

from tests.recipes.conftest import draw  # noqa: F401
