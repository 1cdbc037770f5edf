# Each target does its own set-up in .venv: no sudo. Where there is no compiler, the package's C++ is built by one from PyPI.
PYTHON ?= python3
BIN := .venv/bin

# How many processes run tests: one more than two cores, for some tests mostly wait.
JOBS ?= 3
SPREAD = --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

# Tests start some hundred interpreters; each would compile the package's Python anew where this is set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install test test-full test-machine check train docs dist clean

install: .venv/.native  ## set up .venv with the command sargnn

train: .venv/.native  ## train the embedded graph on four local workers
	$(BIN)/sargnn train

test: .venv/.dev .venv/.native  ## run the tests; TENTH=N, 0 to 9: and a tenth of the long ones
	$(BIN)/pytest $(SPREAD) $(TENTH:%=-m "not machine" --tenth=%)

test-full: .venv/.dev .venv/.native  ## run all tests that share a machine, also the long ones (tests/README.md)
	$(BIN)/pytest $(SPREAD) -m "not machine"

test-machine: .venv/.dev .venv/.native  ## run the tests that need a machine for themselves: faults, clusters, memory
	$(BIN)/pytest -m machine

check: .venv/.dev  ## lint, types, import contract
	$(BIN)/ruff check sargnn benchmarks tests scripts examples docs
	$(BIN)/ruff format --check sargnn benchmarks tests scripts examples docs
	$(BIN)/mypy
	$(BIN)/mypy scripts/*.py examples/*.py docs/*.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_names.py sargnn benchmarks

docs: .venv/.docs  ## build the site into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html

dist: .venv/.dist  ## wheel (of any glibc) and sdist into dist/, checked, and a run from the wheel in an empty environment
	rm -rf dist
	CXX=ziglang $(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd dist && mkdir run && cd run && ../venv/bin/sargnn train dataset.num_nodes=600 epochs=2 world=2 tracking=none
	rm -rf dist/venv dist/run

clean:  ## remove the environment; stores and runs stay
	rm -rf .venv

.venv/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 14) else "Python 3.10 to 3.13 is needed, this is %d.%d: make PYTHON=python3.11 ..." % v)'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.runtime: .venv/.python pyproject.toml
	@echo "setting up .venv (about two minutes, 2 GB; half a minute of them compiles C++)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# After a change of the C++: what changed is compiled again.
.venv/.native: .venv/.runtime sargnn/native/build.py $(wildcard sargnn/native/src/*)
	@$(BIN)/python sargnn/native/build.py
	@touch $@

.venv/.docs: .venv/.runtime  # the tests' environment has it, too
	@test -e .venv/.dev || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

.venv/.dist: .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dist]'
	@touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
