# `make demo` and `make test` set up what they need; everything lands in .venv.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
# The versions that the environment gets: those that the project is developed with, or the newest ones (`make newest`).
VERSIONS := --constraint constraints.txt
# What is in plugins/, each a package of its own.
PACKAGES := vendor-kit cuda demo devtools kernels-extra numba openvino onnxruntime llm ray remote serve testing torch-compile

.PHONY: demo core full test test-all newest fuzz wild deviations mutation test-slow test-models docs gpu-software browser pictures plugins dist lint format bench bench-peers schema clean

demo: $(READY)
	$(PYTHON) -m delegate demo

# A light environment: the core, XNNPACK, portable kernels and pytest, where tests that need more are skipped. `full` has
# everything.
core:
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet $(VERSIONS) torch
	$(PYTHON) -m pip install --quiet $(VERSIONS) --editable ".[xnnpack,aot,quantization,cli]" --editable plugins/testing pytest-xdist
full: $(READY)

# Many tests start processes, which take less time with compiled files. Modules that tests write and change are never
# compiled: a change within the same second would not be seen.
#
# `test` has some cases of each test, of every backend and on whole models; `test-all`, which CI runs, has all of them.
test test-all: export PYTHONDONTWRITEBYTECODE = 1
test: $(READY)
	$(PYTHON) -m compileall -q -j 0 delegate plugins
	$(PYTHON) -m pytest -n 3 --dist worksteal --sample 1
	$(PYTHON) -m pytest -n 3 --dist worksteal --sample 1 plugins
test-all: $(READY)
	$(PYTHON) -m compileall -q -j 0 delegate plugins
	$(PYTHON) -m pytest -n 3 --dist worksteal
	$(PYTHON) -m pytest -n 3 --dist worksteal plugins

# Tests and deviations with the newest version of every library that pyproject.toml allows, in an environment of its own.
# A bound there says what was tested. Raise it, and run this again, when a library has a newer version.
newest:
	$(MAKE) test-all deviations VENV=.venv-newest VERSIONS=--upgrade

test-slow: $(READY)
	$(PYTHON) -m pytest -n 2 -m slow
	$(PYTHON) -m pytest -n 2 -m slow plugins

# Forged program files for some minutes, which call kernels with hostile arguments too; what is found is an error.
MINUTES := 5
fuzz: $(READY)
	OPENBLAS_NUM_THREADS=1 $(PYTHON) -m tests.hostile.files $(MINUTES)

# Generated modules of every family, and random programs of several operators, on every backend against eager.
EXAMPLES := 3000
wild: $(READY)
	OMP_NUM_THREADS=1 EXAMPLES=$(EXAMPLES) $(PYTHON) -m pytest -q -m slow plugins/testing/tests/test_attributes.py

# Every operator of every backend at hard points against torch in double precision, and the tables of deviations against
# what is found; about 40 minutes on two cores, continued where it was stopped.
BACKENDS :=
deviations: $(READY)
	OMP_NUM_THREADS=1 $(PYTHON) -W ignore -m tests.deviations.run $(BACKENDS)

# Product code broken on purpose, in a copy, one line at a time; an error if the tests miss more than a few.
mutation: $(READY)
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.mutation.run

# Every model, with errors, arenas and partitions as they come; an hour or so on two cores.
test-models: $(READY)
	$(PYTHON) -m pytest tests/e2e/test_models_proof.py -m "slow or not slow" --log-cli-level=INFO

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) .ci/lines.py

# The wheels and source distributions of this project and of plugins/, built in .venv without an index, and checked.
dist: $(READY)
	rm -rf build dist $(foreach package,$(PACKAGES),plugins/$(package)/build)
	for source in . $(addprefix plugins/,$(PACKAGES)); do \
	  $(PYTHON) -m build --quiet --no-isolation --outdir dist $$source || exit 1; done
	$(PYTHON) -m twine check --strict dist/*

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(READY)
	$(PYTHON) -m benchmarks.models

# The peers; ExecuTorch goes to an environment of its own, see benchmarks/README.md.
bench-peers: $(READY)
	python3 -m venv .venv-executorch
	.venv-executorch/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-executorch/bin/python -m pip install --quiet --constraint constraints.txt executorch torchao
	python3 -m venv .venv-llama
	.venv-llama/bin/python -m pip install --quiet --constraint constraints.txt xllamacpp gguf

# The documentation as a site, in build/docs/index.html. A broken link or anchor is an error. Needs no network. It
# starts afresh, since parts of pages come from code.
docs: $(READY)
	OMP_NUM_THREADS=1 $(PYTHON) -m sphinx --quiet --fresh-env --jobs 2 --fail-on-warning --keep-going -c docs . build/docs

# A GPU played by software, for machines without one (Debian and Ubuntu; needs root for Vulkan's loader): SwiftShader
# out of Debian's chromium. The tests find it in .gpu-software; for anything else set what `make` prints.
SWIFTSHADER := $(CURDIR)/.gpu-software/usr/lib/chromium
gpu-software:
	apt-get install --quiet --yes libvulkan1
	mkdir -p .gpu-software && cd .gpu-software && apt-get download chromium chromium-common \
	  && for package in *.deb; do dpkg -x $$package .; done && rm -f *.deb
	@echo export ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 VK_DRIVER_FILES=$(SWIFTSHADER)/vk_swiftshader_icd.json

# A browser for the tests of the report page (Debian and Ubuntu; needs root). They are skipped without one.
browser:
	apt-get install --quiet --yes --no-install-recommends chromium

# The pictures of README.md, of the report page in a browser.
pictures: $(READY)
	$(PYTHON) -W ignore -m docs.pictures.draw

# Needs flatc (Debian: flatbuffers-compiler) in the version that schema.fbs names.
schema:
	flatc --python --gen-onefile -o delegate/program delegate/program/schema.fbs

$(READY): pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade "pip>=25.1"
	$(PYTHON) -m pip install --quiet $(VERSIONS) torch
	$(PYTHON) -m pip install --quiet $(VERSIONS) --editable ".[all,docs]" --group dev
	$(PLUGINS)
	touch $(READY)

PLUGINS = $(PYTHON) -m pip install --quiet $(VERSIONS) $(addprefix --editable plugins/,$(PACKAGES:onnxruntime=onnxruntime[all]))
plugins: $(READY)
	$(PLUGINS)

clean:
	rm -rf $(VENV) .venv-newest .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info build dist
