# Every target sets itself up: a clone needs no other command first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
DOCS   := $(VENV)/.installed-docs
PIP     = $(BIN)/python -m pip install -q --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install test test-long test-machines lint docs demo mutants crash-test bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp, not the directory: a .venv made by hand has no stamp and is completed, not replaced.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	        echo "error: $(PYTHON) is older than Python 3.11; try: make PYTHON=python3.12" >&2; exit 2; }; \
	    echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip -q
	@echo "installing stein into $(VENV)"
	@$(PIP) -e .
	@touch $@

$(DEV): $(STAMP)
	@echo "installing the development tools and every optional dependency into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@

$(DOCS): $(STAMP)
	@echo "installing what the documentation needs into $(VENV)"
	@$(PIP) -e '.[docs]'
	@touch $@

install: $(DEV)  ## .venv with stein and the development tools

test: $(DEV)  ## all tests but the long ones, and the examples in docstrings
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long" tests
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest --doctest-modules src

test-long: $(DEV)  ## the tests marked long, into results/test-long
	STEIN_TEST_RESULTS=results/test-long/test-long.json $(BIN)/python -m pytest -n 2 --dist load -m long tests

test-machines: $(DEV)  ## the tests as on other machines: instruction sets, threads, load; into results/test-machines
	$(BIN)/python tests/machines.py $(CONFIGURATIONS)

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DOCS)  ## the documentation, into build/docs/index.html; warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs

demo: $(STAMP)  ## four ensembles beside the posterior, into demo/report.html
	$(BIN)/stein demo

mutants: $(DEV)  ## plant bugs and see the tests catch them
	$(BIN)/python tests/mutants.py

crash-test: $(DEV)  ## kill N training processes (300 unless given) and compare bytes
	$(BIN)/python tests/crash_test.py $(or $(N),300)

bench: $(DEV)  ## measure on a quiet machine, 17 to 35 minutes (ROWS="P1 P5": only these), into benchmarks/results.json and .md
	$(BIN)/python benchmarks/bench.py $(ROWS)

clean:  ## remove .venv and everything that can be made again
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
