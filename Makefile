# `make demo` and `make test` are all a newcomer needs; both create .venv first.
SHELL := /bin/bash
# JAX=newest selects the newest JAX, in a separate environment; the default is the oldest supported version.
JAX ?= oldest
ifeq ($(JAX),newest)
VENV := .venv-newest
LOCK := requirements-newest.lock
OLDEST_PYTHON := 3.12
else
VENV := .venv
LOCK := requirements.lock
OLDEST_PYTHON := 3.11
endif
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.ready
FUZZ_STAMP := $(VENV)/.fuzz
DEMO_ARGS ?=
FUZZ_ARGS ?=
CODE := conftest.py hatch_build.py src tests examples benchmarks docs scripts fuzz

AREA ?=
FOUND := $(foreach a,$(AREA),$(wildcard tests/$(a) src/meshflow/$(a) src/meshflow/$(a).py))
WHERE = $(if $(AREA),$(or $(FOUND),$(error no tests or modules called "$(AREA)")),tests src/meshflow)
# Tests wait a tenth of their time: more workers than processors use it, and need 2 GB each.
WORKERS ?= 2
PYTEST := $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal --doctest-modules --ignore=tests/reference

.PHONY: demo quick test test-newest test-internals test-all fuzz check format docs hooks lock wheel bench clean venv

venv: $(STAMP)

$(STAMP): pyproject.toml $(LOCK) scripts/venv.sh scripts/python.sh
	@bash scripts/venv.sh $(VENV) $(LOCK) $(OLDEST_PYTHON)
	@touch $@

demo: $(STAMP)
	@$(PYTHON) examples/train_digits.py $(DEMO_ARGS)

# Run the tests that are closest to the changes since main, or to AREA, for two minutes.
quick: $(STAMP)
	@near=$$($(PYTHON) tests/nearest.py $(AREA)) && $(PYTEST) $$near

# Run all tests. AREA="data io" selects the tests and examples of some areas, JAX=newest the newest JAX.
test: $(STAMP)
	@$(PYTEST) $(WHERE)

# Test the packages that depend on JAX's internals, with the newest JAX, in at most five minutes: without long tests, and
# without those tests of distribute that use sockets and processes, which do not depend on JAX.
INTERNALS := core passes kernels saved_model environment distribute/replicas distribute/tpu distribute/parallel/planner \
    distribute/parallel/test_offload.py distribute/parallel/test_pipeline.py distribute/parallel/test_weight_passes.py
test-newest:
	@$(MAKE) --no-print-directory test-internals JAX=newest

test-internals: $(STAMP)
	@$(PYTEST) -m "not long" $(INTERNALS:%=tests/%) tests/distribute/test_loops_over_input.py tests/distribute/test_strategies.py

# Run all tests, including those marked `soak` and the long rounds of the others.
test-all: $(STAMP) $(FUZZ_STAMP)
	@MESHFLOW_SOAK=1 $(PYTEST) --timeout=3600 $(WHERE)
	@$(PYTHON) fuzz/run.py --seconds 60

# Fuzz all parsers with coverage guidance for an hour, or FUZZ_ARGS="--seconds 300 models images" for less.
fuzz: $(FUZZ_STAMP)
	@$(PYTHON) fuzz/run.py $(or $(FUZZ_ARGS),--seconds 3600)

$(FUZZ_STAMP): $(STAMP)
	@VIRTUAL_ENV=$(VENV) uv pip install --quiet 'atheris>=3' 2>/dev/null || $(PYTHON) -m pip install --quiet 'atheris>=3'
	@touch $@

check: $(STAMP)
	@$(VENV)/bin/ruff format --check --quiet $(CODE)
	@$(VENV)/bin/ruff check --quiet $(CODE)
	@$(VENV)/bin/mypy
	@$(PYTHON) scripts/prose.py

format: $(STAMP)
	@$(VENV)/bin/ruff format --quiet $(CODE)
	@$(VENV)/bin/ruff check --fix --quiet $(CODE)

docs: $(STAMP)
	@$(PYTHON) -m sphinx -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

hooks:
	@printf '#!/bin/sh\nexec make check\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
	@printf '#!/bin/sh\nexec $(PYTHON) scripts/prose.py --subject "$$(head -n 1 "$$1")"\n' > .git/hooks/commit-msg && chmod +x .git/hooks/commit-msg
	@echo "make check now runs before every commit, and each subject is checked"

lock:
	@bash scripts/lock.sh

wheel: $(STAMP)
	@bash scripts/wheel.sh $(PYTHON) dist

bench: $(STAMP)
	@$(PYTHON) benchmarks/mlp_step.py

clean:
	@rm -rf .venv .venv-newest docs/_build out .pytest_cache .test_cache .mypy_cache .ruff_cache
