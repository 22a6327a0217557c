"""What `make release` finds wrong in a file."""

import zipfile

import bertfam_tf
from tools import check_release

NAME = f"bertfam_tf-{bertfam_tf.__version__}-py3-none-any.whl"


def _wheel(folder, names, name=NAME):
    with zipfile.ZipFile(folder / name, "w") as archive:
        for each in names:
            archive.writestr(each, "")
    return folder / name


def test_what_is_missing_or_too_much(tmp_path):
    needed = check_release.NEEDED
    assert check_release.problems(_wheel(tmp_path, needed)) == []
    found = check_release.problems(_wheel(tmp_path, [*needed[1:], "tests/test_cli.py"]))
    assert found == ["bertfam_tf/py.typed is missing", "has tests/"]
    [found] = check_release.problems(_wheel(tmp_path, needed, "bertfam_tf-9.9-py3-none-any.whl"))
    assert found == f"bertfam_tf-9.9-py3-none-any.whl is not of {bertfam_tf.__version__}"
