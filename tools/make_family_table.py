"""The table that `bertfam families` prints: python -m tools.make_family_table

To be run after a card or its sizes have changed; tests/test_cli.py compares the two.
"""

import json
from pathlib import Path
from typing import Any

from bertfam_tf import models, registry

FILE = Path(models.__file__).parent / "table.json"


def table() -> dict[str, dict[str, Any]]:
    """What the cards say, by family; the parameters of each size are counted."""
    found = {}
    for name in models.families():
        card = registry.get(name)
        found[name] = {
            "tokenizer": card.tokenizer.kind,
            "objectives": list(card.objectives),
            "heads": list(card.heads),
            "parameters": {size: models.count_parameters(name, size) for size in card.sizes},
        }
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=2) + "\n", "utf-8")
    print(FILE)
