#!/usr/bin/env bash
# Sends requests with curl:  serving/clients/curl.sh http://127.0.0.1:8501/v1/models/model
set -euo pipefail
model="${1:-http://127.0.0.1:8501/v1/models/model}"
# Error responses have a body with the reason.
ask() { curl --silent --show-error --fail-with-body --max-time 30 "$@" && echo; }

# Status: which versions are available?
ask "$model"
# Metadata: signatures, inputs and outputs.
ask "$model/metadata"
# Row format: an instance for each text, a prediction for each instance.
ask --data '{"instances": ["a fine film", "dull"]}' "$model:predict"
# Columnar format: a list for each input, a list for each output.
ask --data '{"inputs": {"text": ["a fine film", "dull"]}}' "$model:predict"
# Arbitrary bytes, which need not be UTF-8: base64.
text="$(printf 'quotes ", bytes \xff' | base64 --wrap=0)"
ask --data "{\"instances\": [{\"b64\": \"$text\"}]}" "$model:predict"
# Classifiers also support TensorFlow Serving's Classify: [label, score] for each class.
if curl --silent "$model/metadata" | grep --quiet '"classify"'; then
  ask --data '{"signature_name": "classify", "examples": [{"text": "a fine film"}]}' "$model:classify"
fi
