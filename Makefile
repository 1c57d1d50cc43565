# Everything runs from .venv, which `make install` builds and every target brings up to date.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
CLIENTS := .venv-clients/bin
CLIENTS_INSTALLED := .venv-clients/.installed

.DEFAULT_GOAL := help
.PHONY: help install serve test soak test-clients check bench bench-step bench-front-end fmt clean

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Build .venv with Tandem and the tools in the pinned versions

serve: $(INSTALLED) ## Serve the default model on this machine; flags go in ARGS="..."
	@$(BIN)/tandem serve $(ARGS)

test: $(INSTALLED) ## Run the tests; a selection goes in ARGS="..."
	@$(BIN)/python -m pytest $(ARGS)

soak: $(INSTALLED) ## Ten minutes of mixed load, aborts and slow readers
	TANDEM_SOAK_SECONDS=600 $(BIN)/python -m pytest tests/e2e/test_soak.py

test-clients: $(CLIENTS_INSTALLED) ## Test with langchain, litellm, lm-eval and nginx (needs the package nginx, Python 3.11)
	$(CLIENTS)/python -m pytest -o norecursedirs='.*' -W default tests/clients

check: $(INSTALLED) ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED) ## Measure what speculation does; flags go in ARGS="...", the server's behind --
	@$(BIN)/tandem bench $(ARGS)

bench-step: $(INSTALLED) ## Print step times over rows and widths beside the memory floor
	@$(BIN)/python -m tests.benchmarks.step $(ARGS)

bench-front-end: $(INSTALLED) ## Print what the front end alone carries, on one core
	@$(BIN)/python -m tests.benchmarks.front_end $(ARGS)

fmt: $(INSTALLED) ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv and all caches of the tools
	rm -rf .venv .venv-clients .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is not installed: Tandem needs Python 3.10 or newer (make PYTHON=... names another one)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): Tandem needs Python 3.10 or newer (make PYTHON=... names another one)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) has no venv: install it (on Debian and Ubuntu the package python3-venv)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

$(CLIENTS_INSTALLED): pyproject.toml constraints.txt tests/clients/constraints.txt
	$(PYTHON) -m venv .venv-clients
	$(CLIENTS)/python -m pip install --disable-pip-version-check \
	  -c constraints.txt -c tests/clients/constraints.txt -e ".[dev,clients]"
	@touch $@
