# `make demo` and `make test` are all a newcomer needs; both make .venv first.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.ready
DEMO_ARGS ?=
CODE := conftest.py hatch_build.py src tests examples benchmarks docs

AREA ?=
FOUND := $(foreach a,$(AREA),$(wildcard tests/$(a) src/meshflow/$(a) src/meshflow/$(a).py))
WHERE = $(if $(AREA),$(or $(FOUND),$(error no tests or modules called "$(AREA)")),tests src/meshflow)
PYTEST := $(PYTHON) -m pytest -n 2 --dist worksteal --doctest-modules --ignore=tests/reference

.PHONY: demo quick test test-all check format docs hooks lock wheel bench clean venv

venv: $(STAMP)

$(STAMP): pyproject.toml requirements.lock scripts/venv.sh
	@bash scripts/venv.sh $(VENV)
	@touch $@

demo: $(STAMP)
	@$(PYTHON) examples/train_digits.py $(DEMO_ARGS)

# What an edit can break, in two minutes: nearest to what changed against main, or to AREA.
quick: $(STAMP)
	@near=$$($(PYTHON) tests/nearest.py $(AREA)) && $(PYTEST) $$near

# Everything that must hold; make test AREA="data io" for the tests and examples of some areas.
test: $(STAMP)
	@$(PYTEST) $(WHERE)

# Tests marked `soak`, and the long rounds of the others, too.
test-all: $(STAMP)
	@MESHFLOW_SOAK=1 $(PYTEST) --timeout=3600 $(WHERE)

check: $(STAMP)
	@$(VENV)/bin/ruff format --check --quiet $(CODE)
	@$(VENV)/bin/ruff check --quiet $(CODE)
	@$(VENV)/bin/mypy

format: $(STAMP)
	@$(VENV)/bin/ruff format --quiet $(CODE)
	@$(VENV)/bin/ruff check --fix --quiet $(CODE)

docs: $(STAMP)
	@$(PYTHON) -m sphinx -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

hooks:
	@printf '#!/bin/sh\nexec make check\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
	@echo "make check now runs before every commit"

lock:
	@bash scripts/lock.sh

wheel: $(STAMP)
	@bash scripts/wheel.sh $(PYTHON) dist

bench: $(STAMP)
	@$(PYTHON) benchmarks/mlp_step.py

clean:
	@rm -rf $(VENV) docs/_build out .pytest_cache .test_cache .mypy_cache .ruff_cache
