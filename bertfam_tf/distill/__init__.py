"""Distillation: small models that learn from large ones."""
