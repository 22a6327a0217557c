"""Asks a model over REST, with `requests`.

    python serving/clients/rest_client.py http://127.0.0.1:8501/v1/models/model "a fine film"
    python serving/clients/rest_client.py URL --signature classify "a fine film"

Works with TensorFlow Serving and with `bertfam serve`.
"""

import argparse
import json
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

# A full queue (429, 503) and a connection that was cut pass; other refusals would come again.
# Predictions change nothing, so it is safe to ask twice.
_RETRY = Retry(
    total=4,
    backoff_factor=0.2,
    status_forcelist=(429, 503),
    allowed_methods=None,
    raise_on_status=False,
)


class Client:
    """One model of one server; keeps its connections, so keep it.

    Args:
        url: of the model: http://HOST:8501/v1/models/NAME, perhaps with /versions/3 or
            /labels/stable.
        timeout: seconds for one try of one request.
    """

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._session = requests.Session()
        self._session.mount(self._url, HTTPAdapter(max_retries=_RETRY))

    def predict(self, instances: list[Any], signature: str = "serving_default") -> list[Any]:
        """Returns the answer of each row.

        Args:
            instances: a row is a value where the signature has one input (`"a fine film"`), else
                a dict of them (`{"text": …, "text_pair": …}`).
            signature: of the export.

        Raises:
            RuntimeError: with the server's reason, when it refuses.
        """
        body = {"signature_name": signature, "instances": instances}
        return self._ask("POST", ":predict", body)["predictions"]

    def classify(self, examples: list[dict[str, Any]], signature: str = "classify") -> list[Any]:
        """Returns `[[label, score], …]` of each example, a dict of features: `{"text": …}`."""
        body = {"signature_name": signature, "examples": examples}
        return self._ask("POST", ":classify", body)["results"]

    def states(self) -> dict[int, str]:
        """Returns each version's state: `{1: "END", 2: "AVAILABLE"}`."""
        found = self._ask("GET", "")["model_version_status"]
        return {int(entry["version"]): entry["state"] for entry in found}

    def _ask(self, method: str, verb: str, body: Any = None) -> Any:
        response = self._session.request(method, self._url + verb, json=body, timeout=self._timeout)
        if not response.ok:
            raise RuntimeError(f"{response.status_code}: {_reason(response)}")
        return response.json()


def _reason(response: requests.Response) -> str:
    try:
        return response.json()["error"]
    except (ValueError, KeyError, TypeError):  # from a proxy on the way
        return response.text[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--signature", default="serving_default")
    options = parser.parse_args()
    client = Client(options.url)
    print("versions:", client.states())
    if options.signature == "classify":
        answers = client.classify([{"text": text} for text in options.text])
    else:
        answers = client.predict(options.text, options.signature)
    for text, answer in zip(options.text, answers, strict=True):
        print(json.dumps({"text": text, "answer": answer}, ensure_ascii=False))


if __name__ == "__main__":
    main()
