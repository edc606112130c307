# `make demo` and `make test` set up what they need; everything lands in .venv.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-models lint format bench bench-peers schema docs-ops clean

demo: $(READY)
	$(PYTHON) -m delegate demo

test: $(READY)
	$(PYTHON) -m pytest -n 2

test-slow: $(READY)
	$(PYTHON) -m pytest -m slow

# Every model, with errors, arenas and partitions as they come; an hour or so on two cores.
test-models: $(READY)
	$(PYTHON) -m pytest tests/e2e/test_models_proof.py -m "slow or not slow" --log-cli-level=INFO

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(READY)
	$(PYTHON) -m benchmarks.models

# The peers; ExecuTorch goes to an environment of its own, see benchmarks/README.md.
bench-peers: $(READY)
	$(PYTHON) -m pip install --quiet --constraint constraints.txt onnx onnxscript onnxruntime openvino
	python3 -m venv .venv-executorch
	.venv-executorch/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-executorch/bin/python -m pip install --quiet --constraint constraints.txt executorch

# The support matrix, out of the tables; a test says when it is stale.
docs-ops: $(READY)
	$(PYTHON) -m delegate ops --markdown > docs/support-matrix.md

# Needs flatc (Debian: flatbuffers-compiler) in the version that docs/file-format.md names.
schema:
	flatc --python --gen-onefile -o delegate/program delegate/program/schema.fbs

$(READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade "pip>=25.1"
	$(PYTHON) -m pip install --quiet --constraint constraints.txt torch
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable ".[xnnpack,aot,cli]" --group dev
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info build dist
