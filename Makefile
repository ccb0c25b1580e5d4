# Every target sets up what it needs in .venv and is quick the second time. `make` alone lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Where Python is told to keep nothing of what it compiles, each of some hundred processes compiles the program anew.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
BIN := .venv/bin
# One at a time: `make up` installs in the background what `make test` may want as well.
PIP := flock .venv/.pip-lock $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes

# How long the simulation runs inside `make test`, and how many kills its crash proof makes (`prove-crash` makes 300).
SIMULATION_SECONDS ?= 40
FUZZ_SECONDS ?= 60
CRASH_KILLS ?= 20
# The same for the proof of queues (`prove-queues` makes 60).
QUEUE_KILLS ?= 5
# How many rows the proof of exactly-once writes moves there.
EXACTLY_ONCE_ROWS ?= 60000
# The same for the proof of archives, and how many kills it makes.
ARCHIVE_ROWS ?= 12000
ARCHIVE_KILLS ?= 6
# What `make up` runs beside the node: a pipeline's file, `default`, or `off`.
PIPELINE ?= default
# Passed on: make bench ARGS="--only publish", make up ARGS="--port-offset 1000"
ARGS ?=

RUN := .venv/.run
DEV := .venv/.dev
PIPE := .venv/.pipeline
SPARK := .venv/.spark
BENCH := .venv/.bench
FUZZ := .venv/.fuzz
# Other people's clients must not meet our dependencies, so they live in an environment inside ours.
FOREIGN := .venv/foreign
FOREIGN_PIP = $(FOREIGN)/bin/python -m pip --disable-pip-version-check --quiet
# Those of SQS and SNS do not agree with the others on a botocore.
AWS := .venv/aws

.PHONY: help setup dev pipeline spark up test unit check docs format bench soak fuzz clean lock
.PHONY: prove prove-crash prove-queues prove-etcd prove-m3msg prove-kafka prove-kafka-relay prove-columns prove-mutants prove-fsync prove-wheel prove-foreign prove-tags prove-connections prove-damage prove-hostile prove-memory
.PHONY: prove-exactly-once prove-archive prove-cluster prove-cluster-broker prove-racks

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(RUN) ## make .venv with the program, .venv/bin/penstock, and nothing else

dev: $(DEV) ## setup, and what tests and checks need

pipeline: $(PIPE) ## setup, and PySpark with what it needs, for pipelines and topics as DataFrames

spark: $(SPARK) ## dev and pipeline

# The node is there at once; it has what the pipeline needs installed, and starts the pipeline then.
up: $(RUN) ## run a node in the foreground, data in ./penstock-data, and the default pipeline (PIPELINE=off: without)
	@exec $(BIN)/penstock up $(if $(filter-out off,$(PIPELINE)),--pipeline '$(PIPELINE)' --set 'pipeline.setup=make -s $(PIPE)') $(ARGS)

# Packages first, all in one go, because apt-get lets nobody in beside it. Then the environments and other people's
# programs side by side, and the checks. The parts go three at a time, because tests mostly wait: for processes, for Spark,
# for other people's clients; the longest come first, so that none is left alone at the end.
test: ## checks, tests, most of a minute of simulation, short proofs
	@scripts/need ensurepip node npm strace gcc openssl promtool go java mvn kcat chromium curl etcd etcdctl redis-server
	@$(MAKE) -j3 check peers $(FOREIGN)/.made $(AWS)/.made
	@scratch=$$(scripts/scratch) && trap 'rm -rf "$$scratch"' EXIT && trap 'exit 1' INT TERM && \
		$(MAKE) -j3 SCRATCH="$$scratch" $(PARTS)

PARTS := test-pipeline test-outside test-node test-exactly-once test-crash test-cluster-broker test-simulation test-fuzz test-queues test-archive
.PHONY: peers $(PARTS)
# Built before the tests, because a compiler takes both cores from whatever runs beside it.
peers: | $(BIN)/python
	$(BIN)/python -c "from bench import supply; supply.nsqd(); supply.flight_reader(); supply.m3msg(); supply.kafka(); supply.elasticmq()"
# Where tests that sync much write, and leave nothing of what passed, as it may be memory; Spark's and the proofs stay on
# the disk.
SCRATCH ?=
PYTEST := $(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(BIN)/pytest $(if $(SCRATCH),-o tmp_path_retention_policy=failed)
# What fails runs once more by itself: thousands of tests and other people's servers share two cores, and one answer that
# comes late would refuse the rest. Both runs are printed, and what fails twice has failed.
TESTED = $(PYTEST) -o cache_dir=.pytest_cache/$@ $(1) || \
	{ [ $$? = 1 ] && echo "UNSTEADY? what failed in $@ runs once more" && $(PYTEST) -o cache_dir=.pytest_cache/$@ --last-failed $(1); }
# Those that wait for others most: programs of our own, of others, etcd and Kafka.
OUTSIDE := $(addprefix tests/,cli dynamiq etcd foreign kafka m3msg pages sqs)
test-node:
	$(call TESTED,tests --ignore=tests/pipeline $(addprefix --ignore=,$(OUTSIDE)))
test-outside:
	$(call TESTED,$(OUTSIDE))
test-pipeline: PYTEST = $(BIN)/pytest
test-pipeline:
	$(call TESTED,tests/pipeline)
test-simulation:
	$(BIN)/python -m tests.simulation --seconds $(SIMULATION_SECONDS)
test-crash:
	$(BIN)/python -m tests.proofs.crash --kills $(CRASH_KILLS)
test-queues:
	$(BIN)/python -m tests.proofs.queues --kills $(QUEUE_KILLS)
test-cluster-broker:
	$(BIN)/python -m tests.proofs.cluster_broker --short
test-fuzz:
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)
test-exactly-once:
	$(BIN)/python -m tests.proofs.exactly_once --rows $(EXACTLY_ONCE_ROWS)
test-archive:
	$(BIN)/python -m tests.proofs.archive --rows $(ARCHIVE_ROWS) --kills $(ARCHIVE_KILLS)

# What needs no programs of others, no Spark and no servers, in two halves that take about as long.
# Proofs in small, on real nodes, and random traffic over 60 seeds: half as long as all the others.
UNIT_NOT = tests/test_damage.py tests/test_hostile.py
UNIT_SKIP = tests/node/test_growth.py::test_random_traffic_over_growths_and_restarts_keeps_every_key_in_order
unit: $(DEV) ## the fast loop: tests of the core, under a minute
	@scratch=$$(scripts/scratch) && trap 'rm -rf "$$scratch"' EXIT && trap 'exit 1' INT TERM && \
		$(MAKE) -j2 SCRATCH="$$scratch" unit-log unit-rest
.PHONY: unit-log unit-rest
unit-log:
	$(PYTEST) tests/log tests/registry
unit-rest:
	$(PYTEST) --deselect $(UNIT_SKIP) $(addprefix tests/,config delivery filters intake moves node transactions units) $(filter-out $(UNIT_NOT),$(wildcard tests/test_*.py))

docs: $(DEV) ## write docs/configuration.md again
	$(BIN)/python scripts/configuration > docs/configuration.md

check: $(SPARK) ## ruff, mypy --strict, import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard src tests bench examples)
	$(BIN)/lint-imports --no-logo

format: $(DEV) ## put the code in house format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(BENCH) ## Penstock beside nsqd, Redis, NATS, Kafka and Spark's own on this machine
	$(BIN)/python -m bench $(ARGS)

fuzz: fuzz-listeners fuzz-parsers ## an hour of arbitrary input: half for every listener, half for parsers guided by coverage (-j2: side by side)
.PHONY: fuzz-listeners fuzz-parsers
fuzz-listeners: $(FUZZ)
	$(BIN)/python -m tests.fuzz --seconds 1800 $(ARGS)
fuzz-parsers: $(FUZZ)
	for decoder in nsq lookup layers m3msg kafka dory; do $(BIN)/python -m tests.fuzz.guided $$decoder -max_total_time=300 || exit 1; done

soak: $(DEV) ## simulation seeds until stopped
	$(BIN)/python -m tests.simulation --forever $(ARGS)

prove: prove-crash prove-queues prove-etcd prove-m3msg prove-kafka prove-kafka-relay prove-columns prove-mutants prove-fsync prove-wheel prove-foreign prove-tags prove-connections prove-damage prove-hostile prove-memory prove-exactly-once prove-archive prove-cluster prove-cluster-broker prove-racks ## every proof below

prove-crash: $(DEV) ## kill -9 under load, 300 times: nothing acknowledged is lost
prove-queues: $(DEV) ## the same for queues of SQS and Dynamiq: what was deleted never comes back, the rest does (ARGS="--kills 10")
prove-m3msg: $(DEV) ## M3's own producer, in Go, and a node that is killed while it sends: everything is acked and stored; and out, with node, consumers and etcd's leader killed (ARGS="--kills 10 --rounds 8")
prove-kafka: $(DEV) ## from Kafka through a node to Kafka, and node and Kafka killed meanwhile: nothing is lost, and all comes in once (ARGS="--kills 30")
	@scripts/need java mvn
	$(BIN)/python -m tests.proofs.kafka $(ARGS)

prove-columns: $(DEV) ## Python lines executed do not grow with the messages
prove-mutants: $(DEV) ## planted bugs are found by the simulation
prove-fsync: $(DEV) ## every OK of an fsync topic follows its fdatasync
prove-wheel: $(DEV) ## the built wheel works in an empty environment
prove-foreign: $(DEV) ## pyarrow and Polars read the segments without Penstock
prove-tags: $(DEV) ## a million messages that wait for their tag's client delay nobody
prove-connections: $(DEV) ## many, slow and rude connections cost others nothing (ARGS="--idle 1000 --mute-s 0")
prove-damage: $(DEV) ## every file removed, cut, and with a bit flipped: the rest is served, or a sentence says why not (ARGS="--sampled")
prove-hostile: $(DEV) ## every attack at once from 500 connections: the others lose nothing and wait for nobody (ARGS="--seconds 10")
prove-memory: $(DEV) ## five minutes of 20,000 messages a second: where the node's memory settles (ARGS="--seconds 60")
prove-kafka-relay: $(DEV) ## three brokers of Kafka, killed in turn while a node sends to them: everything arrives, once (ARGS="--kills 10")
	@scripts/need java mvn
	$(BIN)/python -m tests.proofs.kafka_relay $(ARGS)

prove-cluster-broker: $(DEV) ## three nodes, Kafka and etcd, killed, paused and cut off in turn under load: nothing is lost, and nothing is two things (ARGS="--troubles 7")
	@scripts/need java mvn etcd
	$(BIN)/python -m tests.proofs.cluster_broker $(ARGS)

prove-racks: $(DEV) ## a timeline on three nodes, whose rack of consumers and whose node are killed in turn: delivery goes on, and the gap in ms (ARGS="--short")
	@scripts/need java mvn etcd
	$(BIN)/python -m tests.proofs.racks $(ARGS)

prove-m3msg prove-etcd:
	@scripts/need etcd etcdctl
	$(BIN)/python -m tests.proofs.$(@:prove-%=%) $(ARGS)

prove-etcd: $(DEV) ## etcd's leader and the node killed and stopped while topics are made: nothing is lost or made twice (ARGS="--troubles 6")

prove-crash prove-queues prove-columns prove-mutants prove-fsync prove-wheel prove-foreign prove-tags prove-connections prove-damage prove-hostile prove-memory:
	@scripts/need strace gcc
	$(BIN)/python -m tests.proofs.$(@:prove-%=%) $(ARGS)

prove-exactly-once: $(SPARK) ## Spark drivers, an executor and the node killed: every row is written once (ARGS="--rows 5000000")
	@scripts/need java
	$(BIN)/python -m tests.proofs.exactly_once $(ARGS)

prove-archive: $(SPARK) ## drivers and compactions killed while a topic is archived: the table equals the topic
	@scripts/need java
	$(BIN)/python -m tests.proofs.archive $(ARGS)

prove-cluster: $(SPARK) ## every job on a standalone master with two workers, and through Spark Connect
	@scripts/need java
	$(BIN)/python -m tests.proofs.cluster $(ARGS)

lock: $(DEV) ## pin the dependencies again after a change in pyproject.toml
	scripts/lock $(ARGS)

clean: ## remove .venv, caches and build outputs (data stays)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: each is newer than the lock it was made from.
$(BIN)/python:
	@scripts/need ensurepip
	$(PYTHON) -m venv .venv

$(RUN): requirements/run.lock requirements/build.lock pyproject.toml | $(BIN)/python
	$(PIP) -r requirements/run.lock -r requirements/build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): requirements/dev.lock $(RUN)
	$(PIP) -r requirements/dev.lock
	@touch $@

# PySpark comes as source: pip makes a wheel of it, half a minute and half a GB, so only what runs Spark waits for it.
$(PIPE): requirements/spark.lock $(RUN)
	$(PIP) --no-build-isolation -r requirements/spark.lock
	@touch $@

$(SPARK): $(PIPE) $(DEV)
	@touch $@

# Without build isolation, so that hashes cover what builds a client, too. The sources of gnsq hold its own suite.
$(FOREIGN)/.made: requirements/foreign.lock requirements/build.lock tests/foreign/package-lock.json | $(BIN)/python
	@scripts/need ensurepip node npm
	rm -rf $(FOREIGN)
	$(PYTHON) -m venv $(FOREIGN)
	$(FOREIGN_PIP) install --require-hashes -r requirements/build.lock
	$(FOREIGN_PIP) install --require-hashes --no-build-isolation --use-pep517 -r requirements/foreign.lock
	sed -n '/^gnsq==/,/# via/p' requirements/foreign.lock > $(FOREIGN)/gnsq.lock
	$(FOREIGN_PIP) download --require-hashes --no-build-isolation --no-deps --no-binary gnsq \
		--dest $(FOREIGN)/sources -r $(FOREIGN)/gnsq.lock
	cp tests/foreign/package.json tests/foreign/package-lock.json $(FOREIGN)
	cd $(FOREIGN) && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

$(AWS)/.made: requirements/aws.lock tests/foreign/aws/package-lock.json | $(BIN)/python
	@scripts/need ensurepip node npm
	rm -rf $(AWS)
	$(PYTHON) -m venv $(AWS)
	$(AWS)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --only-binary :all: -r requirements/aws.lock
	cp tests/foreign/aws/package.json tests/foreign/aws/package-lock.json $(AWS)
	cd $(AWS) && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

# A peer that cannot be had on this machine is reported by the benchmark as missing, so this may fail.
$(FUZZ): requirements/fuzz.lock $(DEV)
	$(PIP) -r requirements/fuzz.lock
	@touch $@

$(BENCH): requirements/bench.lock $(wildcard bench/peers-java/*/pom.xml) $(SPARK)
	-@scripts/need gcc redis-server go java mvn
	-$(PIP) -r requirements/bench.lock
	-$(BIN)/python -c "from bench import supply; supply.kafka(); supply.kafka_connector(); supply.elasticmq()"
	@touch $@
