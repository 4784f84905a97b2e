# make quickstart   run all seven stages in minutes on a CPU
# make test         run the tests of the package
# make nightly      run what takes long: all tests with more examples, kills, kernels for an H100
# make docs         build the documentation into build/docs
# make reference  update the reference pages and tfm/__init__.pyi after a change of commands or settings
# make wheel        build the wheel and the source distribution in dist/
# make lowest       install the lowest versions of all dependencies into build/lowest, and run the quickstart
# make release      check what a release needs, and print what a person has to do
# make check        what CI runs: format, lint, types, layers, all tests but slow ones, documentation
# Each target sets up .venv itself. PYTHON=python3.12 selects an interpreter.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal
NEEDED := "tfm needs Python 3.11 or newer: make PYTHON=/path/to/python3"

.PHONY: quickstart test nightly docs reference lint format wheel lowest release check clean

quickstart: .venv/installed
	$(BIN)/tfm quickstart

test: .venv/installed-dev
	$(PYTEST) --ignore tests/examples --ignore tests/test_wheel.py

nightly: .venv/installed-dev
	$(INSTALL) . triton
	$(PYTEST) -m 'slow or not slow' --hypothesis-profile nightly

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

# With PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, torch is the smaller one for CPUs.
lowest:
	$(PYTHON) -m venv --clear build/lowest
	sed -n '/^dependencies = \[/,/^]/s/^ *"\(.*\)>=\(.*\)".*/\1==\2/p' pyproject.toml > build/lowest/requirements.txt
	build/lowest/bin/python -m pip install --quiet --requirement build/lowest/requirements.txt
	build/lowest/bin/python -m pip install --quiet .
	cd build/lowest && bin/tfm quickstart && bin/tfm quickstart --examples examples

check: lint docs
	$(PYTEST)

release: check wheel lowest
	$(BIN)/python docs/release.py

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
