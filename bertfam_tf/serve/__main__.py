"""`python -m bertfam_tf.serve <base_path>`: serves a model over REST until it is stopped."""

import argparse
import os
import sys


def main() -> int:
    """Returns the exit status: 0 after a signal, 1 when the server could not start."""
    parser = argparse.ArgumentParser(prog="python -m bertfam_tf.serve", description=__doc__)
    parser.add_argument("base_path", help="directory that holds the versions: 1/, 2/, …")
    parser.add_argument("--model-name", default="model", help="name in the URL (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (%(default)s)")
    parser.add_argument(
        "--rest-port", type=int, default=8501, help="port (%(default)s); 0 picks a free one"
    )
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # warnings, not the greeting

    from bertfam_tf.serve.server import serve
    from bertfam_tf.serve.status import ServingError

    try:
        serve(
            options.base_path,
            model_name=options.model_name,
            host=options.host,
            rest_port=options.rest_port,
        )
    except (ServingError, OSError) as error:
        print(f"Failed to start server. Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
