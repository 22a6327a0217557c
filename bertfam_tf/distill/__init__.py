"""Distillation: small models that learn from the answers of large ones."""
