# Everything runs from .venv, which `make install` builds and every target brings up to date.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install serve test check bench fmt clean

help: ## Print this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Build .venv with Tandem and the tools in the pinned versions

serve: $(INSTALLED) ## Serve the default model on this machine; flags go in ARGS="..."
	@$(BIN)/tandem serve $(ARGS)

test: $(INSTALLED) ## Run the tests; a selection goes in ARGS="..."
	@$(BIN)/python -m pytest $(ARGS)

check: $(INSTALLED) ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED) ## Measure tokens/s with speculation off and on; server flags go in ARGS="..."
	@$(BIN)/tandem bench --prompts tests/data/prompts.jsonl -- $(ARGS)

fmt: $(INSTALLED) ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv and all caches of the tools
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is not installed: Tandem needs Python 3.10 or newer (make PYTHON=... names another one)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): Tandem needs Python 3.10 or newer (make PYTHON=... names another one)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) has no venv: install it (on Debian and Ubuntu the package python3-venv)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@
