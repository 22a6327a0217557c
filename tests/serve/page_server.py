"""Serves the page and the API over models: `page_server.py NAME=BASE_PATH …`; prints the URL."""

import socket
import sys
from types import SimpleNamespace

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from bertfam_tf.serve import Models, rest
from bertfam_tf.serve.ui import Page


def main():
    models = Models()
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    for name, base_path in given.items():
        models.add(name, base_path)
    page = Page()
    page.show(SimpleNamespace(find=models.find, names=lambda: list(given)))
    app = Starlette(routes=[*page.routes, Mount("/", rest.app(models))])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    # As the server runs it.
    config = uvicorn.Config(app, http="h11", lifespan="off", log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
