# Each target installs what it needs. Required: Python 3.11 or later, pip, venv, make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= auto
LIBRARIES := tests/libraries docs/libraries.md docs/migrating.md
TRACKERS := tests/loggers/trackers tests/cli/trackers \
	$(patsubst %,docs/loggers/%.md,mlflow neptune trackio wandb)
JOBS := tests/loggers/test_jobs.py tests/loggers/test_job_faults.py \
	tests/transforms/test_process_shards.py
VIEWERS := tests/page/test_browser.py tests/test_notebooks.py
# Modules are compiled when they are first imported; most of them never are. Without
# bytecode, importing JAX takes three times as long.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := --disable-pip-version-check install --quiet --quiet --no-compile

.PHONY: help demo test fuzz faults canary survival libraries trackers jobs viewers \
	docs lint types bench clean

help:
	@echo "make demo       train a vmapped model, log it live and to disk, then show it"
	@echo "make test       run the tests and the examples in the documentation"
	@echo "make libraries  test programs of other JAX libraries (STEPS=10 for longer runs)"
	@echo "make trackers   test loggers and lox sync with the clients of trackers"
	@echo "make jobs       test multi-process jobs, and failures of their processes"
	@echo "make viewers    test the page in a browser, and notebooks in a Jupyter kernel"
	@echo "make docs       build the documentation site in build/docs"
	@echo "make fuzz       random programs and hostile input (PROGRAMS=5000 SEED=1)"
	@echo "make faults     inject faults, and report what was lost (SCALE=0.1, ONLY=kills)"
	@echo "make canary     test another version of JAX (JAX=0.12.1)"
	@echo "make survival   run all tests on every supported version of JAX"
	@echo "make lint       check formatting and lint"
	@echo "make types      run the type checker"
	@echo "make bench      run the benchmarks, including those against other libraries"
	@echo "make clean      remove virtual environments and caches"

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip $(INSTALL) --upgrade pip  # old versions take twice as long
	$(BIN)/python -m pip $(INSTALL) --editable '.[dev]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/python examples/spirals.py .lox/spirals
	@echo && echo "A page of all seeds, for a browser:"
	@$(BIN)/lox report .lox/spirals --overwrite -o .lox/spirals/report.html
	@echo && echo "More: $(BIN)/lox ls .lox/spirals, or $(BIN)/lox serve .lox/spirals --open"

# The tests of a file share their setup, so one worker runs all of them.
test: $(VENV)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile \
		$(patsubst %,--ignore %,$(LIBRARIES) $(TRACKERS) $(JOBS) $(VIEWERS))

fuzz: $(VENV)/ready
	$(BIN)/python -m tests.fuzz $(or $(PROGRAMS),2000) $(or $(SEED),100000)
	$(BIN)/python -m tests.fuzz.hostile --count $(or $(PROGRAMS),2000) \
		--seed $(or $(SEED),100000)

faults: $(VENV)/ready
	$(BIN)/python -m tests.faults --scale $(or $(SCALE),1) $(if $(ONLY),--only $(ONLY))

# Newer versions of JAX may need a newer Python: `make canary JAX=... PYTHON=python3.13`.
# The canaries come first: they name what has moved. If they fail, the other tests tell
# whether that matters.
CANARY := .venv-canary-$(JAX)
canary:
	@test -n "$(JAX)" || { echo "which version? make canary JAX=0.12.1"; exit 2; }
	test -e $(CANARY)/ready || { $(PYTHON) -m venv $(CANARY) && \
		$(CANARY)/bin/python -m pip $(INSTALL) --upgrade pip && \
		$(CANARY)/bin/python -m pip $(INSTALL) --editable '.[test]' 'jax==$(JAX)' && \
		touch $(CANARY)/ready; }
	@$(CANARY)/bin/python -m pytest -q --tb=line tests/jax/test_canaries.py; canaries=$$?; \
	$(CANARY)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile \
		--ignore tests/jax/test_canaries.py tests/events tests/interpreter tests/jax \
		tests/streams tests/transforms && exit $$canaries

# On versions and with flags that .ci/run tests in part; TESTS=tests/jax runs some tests.
survival:
	.ci/survival $(TESTS)

libraries: $(VENV)/ready
	LOX_LIBRARY_STEPS=$(or $(STEPS),1) $(BIN)/python -m pytest -n $(WORKERS) $(LIBRARIES)

trackers: $(VENV)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TRACKERS)

jobs: $(VENV)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(JOBS)

viewers: $(VENV)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(VIEWERS)

# Warnings are errors, and the site loads nothing from elsewhere.
docs: $(VENV)/ready
	$(BIN)/python -m docs.site.make_pictures
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet \
		--doctree-dir build/doctrees docs build/docs
	$(BIN)/python -m docs.site.check_site build/docs
	@echo "The site is in build/docs/index.html"

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/python -m pip $(INSTALL) --editable '.[bench]'
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks peers

clean:
	rm -rf build $(VENV) .venv-* .mypy_cache .pytest_cache .ruff_cache
