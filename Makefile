# make quickstart   run all seven stages in minutes on a CPU
# make test         run the tests
# make test-slow    follow the tutorials; kill, damage and fill disks
# make test-gpu     compile training for an H100 with triton, which needs no GPU
# make docs         build the documentation into build/docs
# make reference  update the reference pages and tfm/__init__.pyi after a change of commands or settings
# make wheel        build the wheel and the source distribution in dist/
# make check        what CI runs: format, lint, types, layers, tests, documentation
# Each target sets up .venv itself. PYTHON=python3.12 selects an interpreter.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
NEEDED := "tfm needs Python 3.11 or newer: make PYTHON=/path/to/python3"

.PHONY: quickstart test test-slow test-gpu docs reference lint format wheel check clean

quickstart: .venv/installed
	$(BIN)/tfm quickstart

test: .venv/installed-dev
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-slow: .venv/installed-dev
	$(BIN)/python -m pytest -m slow

test-gpu: .venv/installed-dev
	$(INSTALL) . triton
	$(BIN)/python -m pytest -m 'slow or not slow' tests/claimed_gpu

docs: .venv/installed-docs
	$(BIN)/sphinx-build --fail-on-warning --fresh-env --quiet docs build/docs

reference: .venv/installed
	$(BIN)/python docs/generated.py

lint: .venv/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

wheel: .venv/installed-dev
	$(BIN)/python -m build --no-isolation

check: lint test docs

clean:
	rm -rf .venv build quickstart .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and $(NEEDED))'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) .
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) '.[dev]'
	@touch .venv/installed $@

.venv/installed-docs: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) '.[docs]'
	@touch .venv/installed $@
