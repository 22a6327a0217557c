"""Used by the tokenizers: tensorflow-text's kernels, Unicode tables, character maps and merges."""
