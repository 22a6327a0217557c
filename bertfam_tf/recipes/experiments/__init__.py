"""Experiments: runs of recipes with changed settings and several seeds, as one table."""

from bertfam_tf.lazy import lazy

_HOME = {
    "Experiment": "settings",
    "load_experiment": "settings",
    "comparisons": "report",
    "plan_cells": "cells",
    "run_cells": "running",
    "table": "report",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)
