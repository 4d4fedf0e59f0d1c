# On a Linux machine with Python (3.9 to 3.13), pip and make: `make demo` shows what this is, `make test`
# checks it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests of their own that no other process may disturb are marked `serial`.
WORKERS ?= 2

.PHONY: help demo test lint test-matrix test-long clean
.DEFAULT_GOAL := help

help:
	@echo "make demo              trains on real data, kills it twice, goes on, and compares (1 to 2 minutes)"
	@echo "make test              linters, types, layers, and all tests (about 5 minutes on 2 cores)"
	@echo "make test-matrix       the other versions of Paddle and Python, each in an environment of its own"
	@echo "make test-long         the checks that take long; ISSUE=1 runs those of one issue"
	@echo "make lint              linters, types and layers alone"
	@echo "make clean             removes what the targets above have made"

demo:
	@echo "Getting $(VENV) ready (the first time, pip downloads Paddle) ..."
	@$(PYTHON) scripts/environment.py $(VENV) --extras cpu,demo
	@$(BIN)/paddle-resume demo

test: lint
	$(BIN)/python -m pytest -q --doctest-modules paddle_resume
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not serial and not long" tests
	$(BIN)/python -m pytest -q -m "serial and not long" tests || [ $$? -eq 5 ]   # 5: there are none

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-matrix:
	$(PYTHON) scripts/matrix.py

test-long: environment
	PADDLE_RESUME_LONG=1 PADDLE_RESUME_ISSUE=$(ISSUE) $(BIN)/python -m pytest -m long tests

.PHONY: environment
environment:
	@echo "Getting $(VENV) ready (the first time, pip downloads Paddle) ..."
	@$(PYTHON) scripts/environment.py $(VENV) --extras cpu,test

clean:
	rm -rf $(VENV) .matrix build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
