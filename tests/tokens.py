"""Token ids as the families read them."""

import numpy as np


def as_read(backbone, ids):
    """The ids, or of a backbone that reads characters, characters that they determine.

    Args:
        backbone: the backbone.
        ids: int (rows, length).
    """
    for count in backbone.input["token_ids"].shape[2:]:
        ids = ids[..., None] * np.arange(1, count + 1) % backbone.config.vocab_size
    return ids.astype("int32")
