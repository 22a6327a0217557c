"""Both sides of docs/coming-from.md, in an environment with the other libraries."""

import re
from importlib.util import find_spec

import numpy as np
import pytest

from bertfam_tf import sources
from tests.docs import world

pytest.importorskip("torch")

pytestmark = pytest.mark.live
PAGE = world.ROOT / "docs" / "coming-from.md"
NEEDED = {
    "Keras": "keras",
    "`TFBert…` of transformers": "transformers",
    "TF Model Garden": "official",
    "KerasHub": "keras_hub",
    "sentence-transformers": "sentence_transformers",
    "SetFit": "sklearn",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """``theirs`` and ``ours`` of each section, whose blocks run one after the other."""
    folder = tmp_path_factory.mktemp("page")
    text = PAGE.read_text("utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        world.make_paths(text, folder)
        world.embedder().save_pretrained(folder / "package")
        patch.setattr(sources, "_package", lambda name: folder / "package")
        names = {name: world.VALUES[name]() for name in ("texts", "labels")}
        found = {}
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            title, _, body = section.partition("\n")
            if title in NEEDED and find_spec(NEEDED[title]) is None:
                continue
            for key in ("theirs", "ours"):
                names.pop(key, None)
            for block in re.findall(r"```python\n(.*?)```", body, re.DOTALL):
                exec(compile(block, f"{PAGE}: {title}", "exec"), names)
            found[title] = {key: names[key] for key in ("theirs", "ours") if key in names}
        return found


@pytest.mark.parametrize("title", NEEDED)
def test_equal_answers(title, results):
    if title not in results:
        pytest.skip(f"needs {NEEDED[title]}")
    sides = results[title]
    tolerance = 1e-4 if title == "SetFit" else 1e-6
    np.testing.assert_allclose(sides["ours"], sides["theirs"], atol=tolerance)
    # The models tell texts and labels apart.
    assert np.ptp(sides["ours"]) > 1e-3
