"""What `make release` finds wrong in a file."""

import tarfile
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


def test_an_sdist_has_the_server_and_nothing_else_of_serving(tmp_path):
    needed = [name for name in check_release.NEEDED if not name.startswith("bertfam_serve")]
    server = [f"{check_release.SERVER}bertfam_serve/{name}" for name in ("py.typed", "__main__.py")]
    (tmp_path / "x").touch()

    def sdist(names):
        file = tmp_path / f"bertfam_tf-{bertfam_tf.__version__}.tar.gz"
        with tarfile.open(file, "w:gz") as archive:
            for name in ("serving", "serving/server"):
                archive.add(tmp_path, f"top/{name}", recursive=False)
            for name in names:
                archive.add(tmp_path / "x", f"top/{name}")
        return file

    assert check_release.problems(sdist([*needed, *server])) == []
    found = check_release.problems(sdist([*needed, *server, "serving/load_test.py"]))
    assert found == ["has serving/"]
    assert len(check_release.problems(sdist(needed))) == 2
