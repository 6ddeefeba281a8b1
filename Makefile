# Two commands do all set-up on a fresh machine:  make studio   and   make test
# The environment is .venv, pinned by requirements.lock; nothing is installed outside it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes that run tests side by side: one more than there are cores, as tests also wait, and no more than memory is
# good for.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')
export LITELLM_LOCAL_MODEL_COST_MAP := True
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export STREAMLIT_BROWSER_GATHER_USAGE_STATS := false

.PHONY: help studio serve test beyond lint docs bench lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: an install is repeated only when the lock or the project file changed.
$(VENV)/.studio: requirements.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -c requirements.lock -e .
	@touch $@

$(VENV)/.test: requirements.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -c requirements.lock -e '.[test]'
	@touch $@ $(VENV)/.studio

$(VENV)/.lint: requirements.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -c requirements.lock -e '.[test,lint]'
	@touch $@ $(VENV)/.test $(VENV)/.studio

$(VENV)/.docs: requirements.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -c requirements.lock -e '.[docs]'
	@touch $@

# Each process imports some hundred modules: whatever the shell says, what it compiles is kept for the next start.
studio serve test beyond: export PYTHONDONTWRITEBYTECODE :=
studio: $(VENV)/.studio ## install and open the studio on its embedded defaults
	$(BIN)/streamlit run studio $(ARGS)

serve: $(VENV)/.studio ## the same service without a screen
	$(BIN)/claw-studio serve $(ARGS)

test: $(VENV)/.test ## install what tests need and run them
	$(BIN)/python -m pytest -m 'not beyond' -n $(WORKERS) --dist loadfile $(ARGS)

beyond: $(VENV)/.test ## the other tests: real agents and clients, engines, trainers, walks in a browser, what takes long
	$(BIN)/python -m pytest -m beyond -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(VENV)/.lint ## ruff, and mypy strict on core/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs ## build the pages of docs/ as a site in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: $(VENV)/.test ## benchmarks with their peers; results go to bench/results/
	@for b in bench/*/bench_*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

lock: ## resolve all extras anew in a clean environment and pin them
	rm -rf .cache/lock && $(PYTHON) -m venv .cache/lock
	.cache/lock/bin/python -m pip install -q '.[test,lint,docs]'
	.cache/lock/bin/python -m pip freeze --exclude claw-studio | sed -E 's/\+cpu$$//' > requirements.lock

clean: ## remove what the targets made
	rm -rf $(VENV) .cache build ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find core studio pages tests bench examples -name __pycache__ -prune -exec rm -rf {} +
