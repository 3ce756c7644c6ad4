SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
LOCK := requirements-dev.txt
# Files and folders that scripts/english.py checks.
PLAIN := src bench tools scripts tests examples docs README.md CONTRIBUTING.md CHANGELOG.md
# The seed of `make fuzz`, and its inputs per target.
SEED := 1
INPUTS := 1000
# Spark tests often wait, so one process more than there are cores keeps the cores busy.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))

.PHONY: help setup demo test matrix sources cluster-test lint docs dist bench report synth fuzz soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the locked packages; find or install Java
	@scripts/java

demo: setup ## Join two live streams on Spark and check the results with a double loop
	@$(BIN)/handshake demo

# Java's class-data archive for the tests of Spark is written while lint runs.
test: setup ## Run lint, then the test suite
	@$(BIN)/python tests/support/spark_home.py & $(MAKE) lint && wait
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 20

matrix: setup ## Run the Spark tests with PySpark 4.0 to 4.3, oldest and newest packages
	@$(BIN)/python scripts/matrix.py

sources: setup ## Run the tests with S3, pipelines, Kafka and Delta Lake (downloads packages once)
	@$(BIN)/python scripts/sources.py

cluster-test: setup ## Join streams on a cluster of hosts in network namespaces; cut one off, kill another
	@$(BIN)/python scripts/cluster.py

lint: setup ## Check style, format, types, import directions and plain English
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/english.py $(PLAIN)

docs: setup ## Build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

dist: setup ## Build the wheel and the sdist of handshake-join into dist
	@$(BIN)/python -m hatchling build -d dist

bench: setup ## Measure scans, batch joins and sustained streams
	@$(BIN)/handshake bench scan
	@$(BIN)/handshake bench batch
	@$(BIN)/handshake bench sustained

synth: setup ## Synthesise the join circuit: clock and throughput (continues an earlier run)
	@$(BIN)/handshake bench circuit_synth --out bench/results
	@$(BIN)/handshake bench circuit_rates --out bench/results
	@$(BIN)/handshake bench circuit_tables --out bench/results

report: setup ## Write the reproduced figures and tables of the papers to build/report.html
	@$(BIN)/python scripts/report.py

fuzz: setup ## Give mutated inputs to all that is read: make fuzz SEED=2 INPUTS=10000
	@$(BIN)/python scripts/fuzz.py --seed $(SEED) --inputs $(INPUTS)

soak: setup ## Run the long property tests
	@$(BIN)/pytest -n auto -m soak

clean: ## Remove .venv, caches and build outputs
	@rm -rf $(VENV) build dist spark-warehouse metastore_db derby.log .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -path ./.git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +
	@find . -path ./.git -prune -o \( -name '*.nbi' -o -name '*.nbc' \) -type f -exec rm -f {} +

$(STAMP): pyproject.toml $(LOCK)
	@scripts/venv $(VENV)
	@echo "installing the locked packages into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@
