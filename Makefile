# `make help` lists the targets. A second call of any of them needs no network.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that is new enough; if none is, the check in `setup` says what to do.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?=
BASE ?=
IMAGE ?= lagloss
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' lagloss/__init__.py)
# Where the jars are (lagloss_server/ops/jars.py reads the same variable).
JARS := $(or $(LAGLOSS_JARS_DIR),.jars)
UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
# Dependency groups of pyproject.toml that the checkout's locks hold, beside `dev`. Not `msk`, whose library wants an
# older python-dateutil than all others.
RUN_TIME := sdk http checksum aiokafka aws iceberg spark server aggregator embedded notebook build protobuf
# Those of the aggregator's image, which taps run in, too: they compile a registry's .proto.
IN_IMAGE := $(filter-out aiokafka embedded build,$(RUN_TIME))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.development $(JARS)/.complete ## install everything into .venv and .jars (resumes if interrupted)

.PHONY: demo
demo: $(VENV)/.project $(JARS)/.complete ## run the demo and compare injected with measured losses; MINUTES=4 stops after 4 minutes
	@$(BIN)/lagloss demo $(if $(MINUTES),--minutes $(MINUTES))

.PHONY: demo-batch
demo-batch: $(VENV)/.project $(JARS)/.complete ## run the batch pipeline with S3 and Airflow and compare injected faults with measurements; MINUTES=6
	@$(BIN)/python -m pipeline_under_test.batch demo $(if $(MINUTES),--minutes $(MINUTES))

.PHONY: scenarios
scenarios: setup ## run all of scenarios/, each with scheduled faults, on real servers (about 30 minutes)
	@$(BIN)/python -m pipeline_under_test scenario --all

.PHONY: experiments
experiments: setup ## measure the cost of acknowledgements, round trips, retries, kills and CPU-based scaling; writes docs/images/*.svg (about 35 minutes)
	@for name in ingest expel retry delivery cpu-misleads premature-scale-in; do \
		$(BIN)/python -m pipeline_under_test.experiments $$name --out docs/images/$$name.svg; done

# Hundreds of processes are started: without files of compiled code each would compile all of it anew.
test unit histories: export PYTHONDONTWRITEBYTECODE :=
# File by file, those with the longest tests (acceptance, integration) first: no process has a long one left alone. All of
# acceptance is for one process (tests/conftest.py).
WORKERS ?= 3
PROCESSES := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test
test: setup ## run the tests on real servers (under 10 minutes); SLOW=1 adds tests with killed processes and outages (as in CI)
	@$(BIN)/python -m pytest $(if $(SLOW),,-m "not slow") $(PROCESSES)

# By default these tests draw a fraction of this.
MANY := LAGLOSS_HISTORIES=100 LAGLOSS_TAP_HISTORIES=60 LAGLOSS_TABLE_HISTORIES=500 LAGLOSS_LAKE_HISTORIES=100 LAGLOSS_FOLDER_HISTORIES=50 \
	LAGLOSS_ALERTING_HISTORIES=4 LAGLOSS_FAULTS=10 \
	LAGLOSS_REPORT_HISTORIES=300 LAGLOSS_ODD_RECORDS=2000 LAGLOSS_ODD_BODIES=2000 LAGLOSS_BLAME_WORLDS=20 \
	LAGLOSS_REPAIR_HISTORIES=200 LAGLOSS_REPAIR_MOST=10000
RANDOM_TESTS := $(addprefix tests/integration/,aggregator/test_crash_histories.py taps/test_histories.py \
	taps/tables/test_table_histories.py taps/tables/test_lake_histories.py taps/tables/test_folder_histories.py alerting/test_pre_check.py aggregator/reports/test_repeated_reports.py \
	aggregator/test_any_record.py collector/test_any_body.py lagloss_server/repair/test_repairs.py \
	lagloss_server/repair/test_file_repairs.py) \
	tests/unit/lagloss_server/blame/test_causes.py tests/histories/fault_matrix.py

.PHONY: histories
histories: setup ## run the tests of random histories and records with many more seeds than `make test` (about 30 minutes)
	@$(MANY) $(BIN)/python -m pytest -o faulthandler_timeout=0 $(PROCESSES) $(RANDOM_TESTS)

.PHONY: test-tools
test-tools: $(VENV)/.project ## install what some tests need: system packages (as root or with sudo), LocalStack and Airflow
	@$(PYTHON) tests/programs.py
	@$(BIN)/python -m tests.support.kafka_connect
	@$(BIN)/python -m tests.support.iceberg_writer
	@$(BIN)/python -m tests.support.postgres_14
	@$(BIN)/python -m tests.support.spark_archive
	@$(BIN)/python -m lagloss_server.ops.embedded.localstack
	@$(BIN)/python -m pipeline_under_test.batch.airflow

.PHONY: unit
unit: $(VENV)/.development ## run the tests that need no server (one to two minutes)
	@$(BIN)/python -m pytest -q -m "not servers" $(PROCESSES)

.PHONY: pythons
pythons: $(VENV)/.development ## run the unit tests on each Python from 3.11 to 3.14 of this machine; TESTS=tests/unit/lagloss selects some
	@$(BIN)/python -P -m tests.support.pythons $(TESTS)

.PHONY: lint
lint: $(VENV)/.development ## check format, lint, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.development ## format the code and apply automatic fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

.PHONY: bench
bench: setup ## run the benchmarks: closing windows, live numbers, intake, paging, and the dashboard on generated databases
	@$(BIN)/python -m benchmarks

.PHONY: backtest
backtest: setup ## evaluate the default alerting rules on 30 generated days and all scenarios, and print a table
	@$(BIN)/python -m benchmarks.backtest

.PHONY: screenshots
screenshots: setup ## retake the screenshots of README and docs from a demo in a real browser (a few minutes)
	@$(BIN)/python -m docs.make_screenshots

.PHONY: lock
lock: $(VENV)/.development ## regenerate the lock files from pyproject.toml and lagloss_server/ops/jars.py; UPGRADE=1 selects newer versions
	@$(UV_COMPILE) $(RUN_TIME:%=--group %) -o requirements.txt
	@$(UV_COMPILE) $(RUN_TIME:%=--group %) --group dev -c requirements.txt -o requirements-dev.txt
	@$(UV_COMPILE) --group build -c requirements.txt -o requirements-build.txt
	@$(UV_COMPILE) --group sdk --group server -c requirements.txt -o deploy/requirements.txt
	@$(UV_COMPILE) $(IN_IMAGE:%=--group %) -c requirements.txt -o deploy/requirements-aggregator.txt
	@$(BIN)/python -m lagloss_server.ops.jars --lock

.PHONY: wheels
wheels: $(VENV)/.build ## build the wheels lagloss and lagloss-server into dist/
	@for name in lagloss lagloss-server; do \
		(cd packaging/$$name && '$(CURDIR)/$(BIN)/hatchling' build --target wheel --directory '$(CURDIR)/dist'); done

# The first that works: a docker without its daemon does not.
BUILDER ?= $(shell docker info >/dev/null 2>&1 && echo docker || for name in podman buildah; do \
	command -v $$name >/dev/null && { echo $$name; break; }; done)

# The time of every file and layer, so that a second build makes the same images; Docker's is the time of what describes
# them only.
EPOCH := $(shell sed -n 's/^ARG SOURCE_DATE_EPOCH=//p' deploy/Dockerfile)
BUILD = $(BUILDER) build $(if $(BUILDER:docker=),--timestamp $(EPOCH),--build-arg SOURCE_DATE_EPOCH=$(EPOCH)) \
	--label org.opencontainers.image.revision=$(shell git rev-parse HEAD 2>/dev/null) -f deploy/Dockerfile $(FLAGS)

.PHONY: images
images: ## build the release images with docker, podman or buildah: BASE=python:3.11-slim-bookworm@sha256:…, IMAGE=registry.example.com/lagloss, FLAGS=--no-cache
	@[[ '$(BASE)' == ?*@sha256:* ]] || { echo "images: expected BASE=NAME:TAG@sha256:…, since a tag may be moved; found" \
		"'$(BASE)'. 'docker buildx imagetools inspect NAME:TAG' shows the digest" >&2; exit 2; }
	@[[ -n '$(BUILDER)' ]] || { echo "images: expected docker with its daemon, podman or buildah; found none of them" >&2; exit 3; }
	$(BUILD) --build-arg BASE='$(BASE)' --target services -t '$(IMAGE):$(VERSION)' .
	$(BUILD) --build-arg BASE='$(BASE)' --target aggregator -t '$(IMAGE)-aggregator:$(VERSION)' .

.PHONY: test-images
test-images: setup ## build the images, run docker-compose.yml, kill a broker and PostgreSQL in it (about 15 minutes; docker, or podman as root)
	@$(BIN)/python -m pytest tests/images/composed.py

.PHONY: sbom
sbom: setup ## write bills of materials (CycloneDX) of the wheels and images into dist/
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null)} $(BIN)/python -P packaging/sbom.py dist

.PHONY: audit
audit: $(VENV)/.development ## check the locked Python packages for known vulnerabilities (downloads advisories)
	@$(BIN)/python -P .ci/audit.py

.PHONY: clean
clean: ## remove caches and build output
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

.PHONY: clean-all
clean-all: clean ## also remove .venv, .jars and .tools
	@rm -rf $(VENV) $(JARS) .tools

# The stamps lie inside what they speak of: who deletes the folder deletes the stamp. Each is written last, so an
# interrupted step is done again; pip and lagloss_server.ops.jars keep what they have fetched already.

$(VENV)/.build: requirements-build.txt
	@$(PYTHON) -I lagloss_server/ops/machine.py .
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo "set-up: making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); fi
	@mkdir -p $(SCRATCH)
	@$(PIP) download --quiet --retries 1 --timeout 20 --no-deps --dest $(SCRATCH) editables 2>/dev/null || { \
		echo "set-up: pip cannot fetch packages; '$(BIN)/python -m pip download editables' shows why. Check the network" \
		"(pip takes a proxy from HTTPS_PROXY, a mirror from PIP_INDEX_URL), then run the same command again" >&2; exit 3; }
	@$(call install,requirements-build.txt)
	@touch $@

$(VENV)/.packages: $(VENV)/.build requirements.txt
	@echo "set-up: installing Python packages (about 690 MB with Spark, some minutes the first time)"
	@$(call install,requirements.txt)
	@touch $@

$(VENV)/.development: $(VENV)/.project requirements-dev.txt
	@echo "set-up: installing packages for development (about 160 MB)"
	@$(call install,requirements-dev.txt)
	@touch $@

$(VENV)/.project: $(VENV)/.packages pyproject.toml lagloss/__init__.py
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(JARS)/.complete: $(VENV)/.project lagloss_server/ops/jars.lock
	@echo "set-up: fetching the jars (63 MB, under a minute)"
	@$(BIN)/python -m lagloss_server.ops.jars
	@touch $@

SCRATCH := $(VENV)/tmp
# Spark is built from its source package: 1.4 GB for a moment, more than a /tmp in memory may hold.
PIP = TMPDIR='$(CURDIR)/$(SCRATCH)' $(BIN)/python -m pip --disable-pip-version-check
install = mkdir -p $(SCRATCH) && $(PIP) install --no-build-isolation --require-hashes -r $(1) && rm -rf $(SCRATCH) || { \
	echo "set-up: pip failed, see above; with a network, run the same command again: it goes on from here" >&2; exit 3; }
