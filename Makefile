# Each target does its own set-up in .venv: no sudo, no compiler.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test check clean

train: .venv/.runtime  ## train the embedded graph on four local workers
	$(BIN)/sargnn train

# The command line's tests and those of scripts wait much and the others compute much: they share the cores. Those that kill and
# time workers run alone.
# The others go to the background, for what runs there hears no interrupts, which the command line's tests send.
test: .venv/.dev  ## run the tests
	@$(BIN)/pytest --ignore=tests/cli --ignore=tests/launch --ignore=tests/slurm > .venv/others.log 2>&1 & others=$$!; \
	$(BIN)/pytest tests/cli tests/slurm/test_script.py; commands=$$?; \
	wait $$others; computed=$$?; cat .venv/others.log; \
	$(BIN)/pytest tests/launch tests/slurm/test_jobs.py; launched=$$?; \
	test "$$commands $$computed $$launched" = "0 0 0"

check: .venv/.dev  ## lint, types, import contract
	$(BIN)/ruff check sargnn tests scripts
	$(BIN)/ruff format --check sargnn tests scripts
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:  ## remove the environment; stores and runs stay
	rm -rf .venv

.venv/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 13) else "Python 3.10 to 3.12 is needed, this is %d.%d: make PYTHON=python3.11 ..." % v)'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.runtime: .venv/.python pyproject.toml
	@echo "setting up .venv (about two minutes, 2 GB)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
