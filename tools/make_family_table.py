"""The table that `bertfam families` prints: python -m tools.make_family_table

Run it after a family or its sizes have changed; tests/test_cli.py compares the table.
"""

import json
from pathlib import Path
from typing import Any

from bertfam_tf import models, registry

FILE = Path(models.__file__).parent / "table.json"


def table() -> dict[str, dict[str, Any]]:
    """The definition of each family, with the number of parameters of each size."""
    found = {}
    for name in models.families():
        record = registry.get(name)
        found[name] = {
            "tokenizer": record.tokenizer.kind,
            "objectives": list(record.objectives),
            "heads": list(record.heads),
            "parameters": {size: models.count_parameters(name, size) for size in record.sizes},
        }
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=2) + "\n", "utf-8")
    print(FILE)
