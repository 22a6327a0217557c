"""An export of the smallest classifier, and a server over it."""

import pytest

import bertfam_tf as bf
from bertfam_tf.serve import load, running_server


@pytest.fixture(scope="session")
def export(smallest, tmp_path_factory):
    """A base path with version 1."""
    directory = tmp_path_factory.mktemp("exports") / "model"
    bf.TextClassifier.from_pretrained(smallest, pair=False).export(directory)
    return directory


@pytest.fixture(scope="session")
def servable(export):
    return load(export / "1")


@pytest.fixture(scope="session")
def export_server(export):
    with running_server(export, model_name="m") as running:
        yield running


@pytest.fixture(scope="session")
def address(export_server):
    return export_server.grpc_target
