"""The tokenizers: one module per algorithm, and their base class."""
