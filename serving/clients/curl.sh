#!/usr/bin/env bash
# Asks a model with curl:  serving/clients/curl.sh http://127.0.0.1:8501/v1/models/model
set -euo pipefail
model="${1:-http://127.0.0.1:8501/v1/models/model}"
# Bodies of errors say why.
ask() { curl --silent --show-error --fail-with-body --max-time 30 "$@" && echo; }

# Is it up, and in which version?
ask "$model"
# Which signatures, inputs and outputs are there?
ask "$model/metadata"
# A row for each text; a row for each answer.
ask --data '{"instances": ["a fine film", "dull"]}' "$model:predict"
# The same by columns: a list for each input, a list for each output.
ask --data '{"inputs": {"text": ["a fine film", "dull"]}}' "$model:predict"
# Text from elsewhere, whatever is in it: as base64.
text="$(printf 'quotes ", bytes \xff' | base64 --wrap=0)"
ask --data "{\"instances\": [{\"b64\": \"$text\"}]}" "$model:predict"
# Classifiers answer TensorFlow Serving's Classify, too: [label, score] of each class.
if curl --silent "$model/metadata" | grep --quiet '"classify"'; then
  ask --data '{"signature_name": "classify", "examples": [{"text": "a fine film"}]}' "$model:classify"
fi
