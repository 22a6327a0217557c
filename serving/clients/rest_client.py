"""A REST client that uses `requests`.

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

# Full queues (429, 503) and lost connections are temporary; other errors would happen again.
# Predictions have no side effects, so it is safe to retry.
_RETRY = Retry(
    total=4,
    backoff_factor=0.2,
    status_forcelist=(429, 503),
    allowed_methods=None,
    raise_on_status=False,
)


class Client:
    """A client for one model of a server. Reuse it, because it keeps its connections.

    Args:
        url: http://HOST:8501/v1/models/NAME, optionally with /versions/3 or /labels/stable.
        timeout: seconds for one attempt of one request.
    """

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._session = requests.Session()
        self._session.mount(self._url, HTTPAdapter(max_retries=_RETRY))

    def predict(self, instances: list[Any], signature: str = "serving_default") -> list[Any]:
        """Returns the prediction for each instance.

        Args:
            instances: values (`"a fine film"`) if the signature has one input, otherwise dicts of
                inputs (`{"text": …, "text_pair": …}`).
            signature: the signature's name.

        Raises:
            RuntimeError: the server returned an error; the message contains its reason.
        """
        body = {"signature_name": signature, "instances": instances}
        return self._ask("POST", ":predict", body)["predictions"]

    def classify(self, examples: list[dict[str, Any]], signature: str = "classify") -> list[Any]:
        """Returns `[[label, score], …]` for each example, a dict of features: `{"text": …}`."""
        body = {"signature_name": signature, "examples": examples}
        return self._ask("POST", ":classify", body)["results"]

    def states(self) -> dict[int, str]:
        """Returns each version's state: `{1: "END", 2: "AVAILABLE"}`."""
        statuses = self._ask("GET", "")["model_version_status"]
        return {int(entry["version"]): entry["state"] for entry in statuses}

    def _ask(self, method: str, verb: str, body: Any = None) -> Any:
        response = self._session.request(method, self._url + verb, json=body, timeout=self._timeout)
        if not response.ok:
            raise RuntimeError(f"{response.status_code}: {_reason(response)}")
        return response.json()


def _reason(response: requests.Response) -> str:
    try:
        return response.json()["error"]
    except (ValueError, KeyError, TypeError):  # the response of a proxy
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
