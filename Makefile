# Everything here sets itself up: it needs Python (3.11 or later), pip, venv and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= auto
# Python compiles what it imports, which is a small part of what is installed
INSTALL := --disable-pip-version-check install --quiet --no-compile

.PHONY: help demo test soak libraries lint types bench clean

help:
	@echo "make demo    a vmapped training run, logged live and to disk, then shown"
	@echo "make test    the tests"
	@echo "make soak    the oracle on thousands of random programs (PROGRAMS=5000)"
	@echo "make libraries  programs of JAX libraries; at length with STEPS=10"
	@echo "make lint    formatting and lint;  make types  the type checker"
	@echo "make bench   the benchmarks"

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip $(INSTALL) --upgrade pip  # old ones take twice as long
	$(BIN)/python -m pip $(INSTALL) --editable '.[dev]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/python examples/spirals.py

test: $(VENV)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --ignore tests/libraries

soak: $(VENV)/ready
	$(BIN)/python -m tests.soak $(or $(PROGRAMS),2000)

libraries: $(VENV)/ready
	LOX_LIBRARY_STEPS=$(or $(STEPS),1) $(BIN)/python -m pytest -n $(WORKERS) tests/libraries

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .pytest_cache .ruff_cache
