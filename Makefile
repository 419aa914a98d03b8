# All commands for users and contributors. `make demo` and `make test` run `make setup` first.
.DEFAULT_GOAL := help
.ONESHELL:
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-by-make
FAST := tests/contract tests/simulation tests/property tests/unit benchmarks/tests
SLOW := tests/chaos tests/containers tests/integration
PYTEST := $(BIN)/pytest
# Modules that decide and finish commits: every line and branch has a test.
PROTOCOL := runtime/checkpoint/*,runtime/continuous/native_commits.py,connectors/kafka/sink/committer/kafka_committer.py,connectors/kafka/sink/handles.py
PROTOCOL := $(PROTOCOL),connectors/kafka/sink/committer/transaction_lease.py,connectors/hdfs/committing/file_lease.py,runtime/ownership/lease.py,connectors/kafka/sink/producers/producer_pool.py,connectors/kafka/sink/producers/producer_slots.py,connectors/kafka/sink/committer/transaction_sweep.py
PROTOCOL := $(PROTOCOL),connectors/kafka/sink/committer/kafka_wire.py,connectors/kafka/sink/committer/commit_outcomes.py,connectors/hdfs/staging/committables.py
PROTOCOL := $(PROTOCOL),connectors/hdfs/committing/file_committer.py,connectors/hdfs/committing/file_committer.py,connectors/hdfs/staging/staged_names.py,connectors/hdfs/committing/file_sweep.py
PROTOCOL := $(PROTOCOL),runtime/model/timestamps.py,runtime/spark/microbatch/query_logs.py
# For `make coverage`; `COVERED=tests/unit` measures a part.
COVERED ?= $(SLOW) $(FAST)
# Two processes more than cores, each with servers of its own: tests wait for them half of the time.
# The longest modules run first, so that none of them delays the end.
WORKERS ?= 4
# Native tracebacks: pytest's own parse the source, which has ended whole runs by an error of Python
# 3.11 ("AST constructor recursion depth mismatch").
PARALLEL = --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --tb=native
# Tests start many Python processes, which must not compile the checkout each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: versions help setup demo check lint test test-more simulate test-containers test-chaos test-asan docs wheels copier chaos chaos-slice soak mutants coverage bench bench-goals bench-quick bench-parts bench-check prose clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(STAMP) ## make .venv, fetch the Kafka broker, prepare it and Spark; instant if done before

$(STAMP): pyproject.toml setup.py $(wildcard connectors/kafka/native/*.c)
	@python=$$(for name in $${PYTHON:-python3 python3.13 python3.12 python3.11}; do
	    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break
	done || true)
	if [[ -z $$python ]]; then
	    echo "Sluice needs Python 3.11 or newer, and none was found: install it, or run make with PYTHON=/path/to/python3." >&2
	    exit 1
	fi
	java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java
	banner=$$("$$java" -version 2>&1 | grep -m 1 version || true)
	if [[ ! $$banner =~ \"([0-9]+) ]] || (( $${BASH_REMATCH[1]} < 17 )); then
	    echo "Sluice needs Java 17 or newer, and found '$${banner:-none}': install it (Debian: openjdk-17-jdk-headless), or let JAVA_HOME name one." >&2
	    exit 1
	fi
	# Resumes an interrupted setup.
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1 && ! answer=$$("$$python" -m venv $(VENV) 2>&1); then
	    rm -rf $(VENV)
	    echo "Python's venv module does not work: install it (Debian: python3-venv). Its output: $$(tail -n 3 <<<"$$answer" | xargs -0)" >&2
	    exit 1
	fi
	echo "Installing the Python packages into $(VENV) ..."
	# Without it setuptools warns of the symbolic links of an editable installation.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/sluice kafka fetch >/dev/null
	echo "Archiving Spark's classes, so that it starts faster (a minute, once) ..."
	$(BIN)/sluice spark prepare >/dev/null 2>&1 ||
	    echo "That failed, so Spark starts slower; all else works. Run '$(BIN)/sluice spark prepare' to see why." >&2
	touch $@

demo: setup ## run a pipeline, kill it half way, restart it, check the result
	@$(BIN)/sluice demo

lint: setup ## format, rules, types, import contracts
	@$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache

check: lint prose ## lint, text check, unit tests, a quarter of the property examples; two minutes
	@SLUICE_SHARE=0.25 $(PYTEST) -q --numprocesses=2 tests/unit tests/property benchmarks/tests -m 'not extended'

# Tests with the mark `extended` run in `test-more`.
test: lint ## all quick tests, and of the slow ones a proof of each rule; about 15 minutes on two cores
	@$(PYTEST) -q -rs $(PARALLEL) $(SLOW) $(FAST) -m 'not extended'

test-more: setup ## all other tests: kills, outages, clusters; containers if a Docker engine runs
	@$(PYTEST) -q -rs $(PARALLEL) $(SLOW) $(FAST) -m extended

# `make simulate` prints the seed and steps of a broken promise; `.venv/bin/python -m tests.simulation --seed N`
# runs them again.
SCHEDULES ?= 1e7
simulate: WORKERS = $(shell nproc)
simulate: setup ## random crashes, pauses and late requests on models of Kafka and Spark; SCHEDULES=1e7 SEED=0
	@$(BIN)/python -m tests.simulation --schedules $(SCHEDULES) --seed $(or $(SEED),0) --workers $(WORKERS)

test-containers: setup ## brokers in containers: killed, lost, partitioned
	@SLUICE_REQUIRE_CONTAINERS=1 $(PYTEST) -q tests -m containers

AZURITE = build/azurite/node_modules/.bin
test-azure: setup ## checkpoints and files on Azurite, which npm installs into build (apt install nodejs npm)
	@[[ -x $(AZURITE)/azurite-blob ]] || npm install --silent --prefix build/azurite azurite@3.35.0
	PATH="$(CURDIR)/$(AZURITE):$$PATH" SLUICE_REQUIRE_AZURITE=1 $(PYTEST) -q tests -m azure

test-chaos: setup ## kill -9 of real processes at every failpoint, and all other long tests
	@SLUICE_CHAOS=long $(PYTEST) -q $(PARALLEL) tests -m 'chaos or long'

CELL ?=
versions: setup ## tests with other versions of Python, Java, PySpark and Kafka; CELL=name, or all; Debian 13 needs root
	@$(BIN)/python -m tools.versions run $(CELL)
	$(BIN)/python -m tools.reference

copier: setup ## Kafka's own copier test with Sluice as the copier: driver, executors and brokers restart
	@SLUICE_CHAOS=long $(PYTEST) -q -rA tests/chaos/test_copier.py

FAULTS ?= 50
TOGETHER ?= 1
HOURS ?= 1
PIPELINE ?=

chaos: setup ## FAULTS=n random faults (SEED=s, TOGETHER=k at a time) in brokers, HDFS, Spark and a job in containers; needs root and a Docker engine
	@SLUICE="$(CURDIR)/$(BIN)/sluice" tests/environment/images.sh
	$(BIN)/python -m tests.environment chaos --faults $(FAULTS) --together $(TOGETHER) $(if $(SEED),--seed $(SEED)) $(if $(PIPELINE),--pipeline $(PIPELINE)) $(if $(KINDS),--kinds $(KINDS))

chaos-slice: setup ## the part of `chaos` for CI: tests of each kind of fault, and a round of three faults; minutes
	@SLUICE="$(CURDIR)/$(BIN)/sluice" tests/environment/images.sh
	SLUICE_CHAOS=long SLUICE_REQUIRE_CONTAINERS=1 $(PYTEST) -q -rs tests/containers -m slice

soak: setup ## HOURS=h of load in those containers with a fault a minute; memory, handles, threads and ids must not grow
	@SLUICE="$(CURDIR)/$(BIN)/sluice" tests/environment/images.sh
	$(BIN)/python -m tests.environment soak --hours $(HOURS) $(if $(SEED),--seed $(SEED)) $(if $(PIPELINE),--pipeline $(PIPELINE))

# The library is also loaded into brokers, whose JVM has its own signal handlers. Python never frees all memory.
FUZZ ?= long
test-asan: setup ## the native hot path under AddressSanitizer; needs a C compiler; FUZZ=short without its many examples
	@library=$$($(BIN)/python -c 'from sluice.connectors.kafka.native.library import built_file; print(built_file())')
	mv "$$library" "$$library.kept"
	trap 'mv "$$library.kept" "$$library"' EXIT
	cc -g -O1 -Wall -Wextra -Werror -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -shared -fPIC \
	    -o "$$library" connectors/kafka/native/_hot_path.c -ldl
	LD_PRELOAD=$$(cc -print-file-name=libasan.so) \
	    ASAN_OPTIONS=detect_leaks=0:handle_segv=0:allow_user_segv_handler=1 SLUICE_CHAOS=$(FUZZ) \
	    $(BIN)/pytest -q tests/contract/test_native_clients.py \
	    tests/integration/test_hot_path.py tests/integration/test_hot_path_restarts.py

# MUTANTS: names, or a part (2/4). Without it all mutants run and write docs/research/mutants.md.
MUTANTS ?=
mutants: setup ## break each rule of the protocol on purpose: a test must fail; MUTANTS="fencing-records-retired record-replaced" for a few
	@$(BIN)/python -m tests.mutants $(MUTANTS)

coverage: setup ## lines and branches of `make test` without its kills
	@export COVERAGE_FILE="$(CURDIR)/build/coverage/data"
	run="$(BIN)/python -m coverage"
	rm -rf build/coverage
	mkdir -p build/coverage
	$$run run -m pytest -q -rs $(PARALLEL) $(COVERED) -m 'not extended and not chaos'
	$$run combine --quiet
	$$run report --fail-under=95
	$$run report --include='$(PROTOCOL)' --fail-under=100

bench: setup ## Sluice and the peers in turn on one broker: table and chart in docs/research; hours
	@$(BIN)/python -m benchmarks peers --results build/bench/peers.jsonl
	mv build/bench/peers.jsonl benchmarks/peers/results.jsonl
	$(BIN)/python -m benchmarks report --write

bench-goals: setup ## all figures of the goals, and the scaling tables, in docs/research; many hours
	@run="$(BIN)/python -m benchmarks"
	$$run peers --results build/bench/peers.jsonl
	$$run steady --results build/bench/peers.jsonl
	$$run region-kills region-cpu bookkeeping balancing single-point
	$$run region-kills region-cpu --engine continuous
	$$run coordinator-load --tasks 10000
	for ha in zookeeper lease; do $$run leader-kills --ha $$ha; done
	$$run coordinator-cost --records 5000000 --window 60 --repeat 5
	$$run scaling --results build/bench/scaling.jsonl
	$$run keyed --results build/bench/keyed.jsonl
	mv build/bench/peers.jsonl benchmarks/peers/results.jsonl
	mv build/bench/scaling.jsonl benchmarks/scaling/scaling_results.jsonl
	mv build/bench/keyed.jsonl benchmarks/keyed/keyed_results.jsonl
	$$run report --write

bench-quick: setup ## `bench` with one small run each, which it only prints
	@$(BIN)/python -m benchmarks peers --quick
	$(BIN)/python -m benchmarks report build/bench/quick.jsonl

bench-parts: setup ## our own throughput, latency, recovery and regions, as a table
	@$(BIN)/python -m benchmarks

PROSE ?=
prose: setup ## count sentences that need a second reading; PROSE="--show docs" lists them
	@$(BIN)/python -m tools.prose $(PROSE)

bench-check: setup ## tests of the benchmarks' own code; seconds
	@$(PYTEST) -q benchmarks/tests

wheels: setup ## the sdist and the wheels for x86_64 and aarch64 into dist/, each checked; two minutes
	@$(BIN)/python -m tools.wheels

docs: setup ## build the documentation site into build/site; a broken link is an error
	@$(BIN)/python -m tools.reference --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## delete all files of the other commands, with measurements; keeps the per-user cache
	@rm -rf connectors/kafka/native/*.so $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache spark-warehouse metastore_db derby.log
