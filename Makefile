# Everything runs inside .venv; nothing but Python 3.11+ and make is assumed.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
EXTRAS := .venv/.extras

.PHONY: demo test test-all lint bench clean

demo: $(INSTALLED)
	$(BIN)/fleetcast simulate scenarios/demo.yaml --out results/demo

test: lint
	$(BIN)/pytest -n auto --dist worksteal

test-all: lint $(EXTRAS)
	$(BIN)/pytest -n auto --dist worksteal -m "slow or not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.docs.docstrings
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m tests.bench

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "fleetcast needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(INSTALLED)

# Ray, Dask and Optuna, for the tests of clusters and of sampled plans: skipped without them.
$(EXTRAS): $(INSTALLED)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dask,optuna,ray]' && touch $(EXTRAS)

clean:
	rm -rf .venv results build *.egg-info
