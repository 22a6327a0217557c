"""The previous place of ``tests.support.checkout``."""

from tests.support.checkout import environment as environment
