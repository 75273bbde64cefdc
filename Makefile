# One entry point for people and for CI. `make` alone lists the targets.

PYTHON  ?= python3
# Tests wait for processes for part of their time, so more workers than cores pay.
WORKERS ?= 4
ARGS    ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK  := requirements.lock.txt
PIP   := $(BIN)/python -m pip --quiet --disable-pip-version-check
# uv only compiles the lock file; `make lock UV=uv` uses one that is already there.
UV    ?= .uv/bin/uv

define FIRST_START
from quorumcast.pipeline.session import spark_session
spark_session("install").range(9).groupBy("id").count().collect()
endef
export FIRST_START

# Tests start a thousand processes of this package: compiled once, they start in half the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install test walk lint types demo bench sim lock format clean check-python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## build .venv with the pinned versions (only when they changed)

$(STAMP): $(LOCK) pyproject.toml | check-python
	@echo "install: environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "install: pinned packages from $(LOCK)"
	@$(PIP) install --no-compile --require-hashes -r $(LOCK)  # compiled below, where it is needed
	@echo "install: quorumcast, editable"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@echo "install: Spark, started once, and the tests, compiled once: both start faster from now on"
	@$(BIN)/pytest -n 0 --collect-only >/dev/null 2>&1 & \
	$(BIN)/python -c "$$FIRST_START" 2>/dev/null; wait
	@touch $@

check-python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "Quorumcast needs Python 3.11 or newer, but there is no '$(PYTHON)' here; name one with 'make PYTHON=…'."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Quorumcast needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -c 'import platform; print(platform.python_version())'); name a newer one with 'make PYTHON=…'."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "This Python cannot make virtual environments yet: run 'sudo apt install python3-venv' and try again."; exit 1; }

test: lint ## everything CI checks: lint, types, tests
	@$(BIN)/mypy --no-error-summary & types=$$!; \
	$(BIN)/pytest -n $(WORKERS) -m "not walk" $(ARGS); tests=$$?; \
	wait $$types && exit $$tests

walk: install ## what takes long: paste the blocks of every page, Spark on its own machines or killed, failing trees
	@$(BIN)/pytest -n 2 -m walk tests/examples tests/bench/test_soak.py tests/runtime/test_tree_failures.py tests/pipeline/test_java.py tests/pipeline/test_sink_killed.py $(ARGS)

lint: install ## ruff: rules and format; the form of new commits
	@$(BIN)/python tests/house/commits.py
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "lint: some files are not formatted; run 'make format'."; exit 1; }

types: install ## mypy, strict
	@$(BIN)/mypy --no-error-summary

demo: install ## a cell on this machine, with a liar in it
	@$(BIN)/quorumcast demo $(ARGS)

bench: install ## measure (ARGS="…" for options)
	@$(BIN)/quorumcast bench $(ARGS)

sim: install ## run the simulator (ARGS="…" for options)
	@$(BIN)/quorumcast sim $(ARGS)

lock: $(filter .uv/bin/uv,$(UV)) ## pin versions again; newest ones with ARGS=--upgrade
	@$(UV) pip compile pyproject.toml --extra dev --extra spark --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	  --quiet --output-file $(LOCK) $(ARGS) >/dev/null
	@! grep -nE '://|--(extra-)?index-url|--find-links' $(LOCK) || \
	  { echo "lock: $(LOCK) must not hold addresses."; exit 1; }

.uv/bin/uv: | check-python
	@echo "lock: uv in .uv"
	@$(PYTHON) -m venv .uv
	@.uv/bin/python -m pip --quiet --disable-pip-version-check install uv

format: install ## let ruff fix and format
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

clean: ## remove environments, caches and build output
	@rm -rf $(VENV) .uv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
