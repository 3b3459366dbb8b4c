# What people type. Every target sets up what it needs first; a second set-up takes less than a second.

SHELL := /bin/bash
BIN := .venv/bin

# One more than the smallest machine has cores: tests wait for disks and for processes that start.
TEST_PROCESSES ?= 3
# How long the kill loop runs: minutes by hand, an hour to soak.
CRASH_MINUTES ?= 5
SOAK_MINUTES ?= 60
FUZZ_MINUTES ?= 20
KILL_ROUNDS ?= 50

# The tests start hundreds of Pythons: each would compile everything again where none may keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test lint check bench crash soak shake wheel sbom

help:  ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1\t\2/p' Makefile | expand -t 14

setup:  ## everything needed, nothing more; leaves .venv/bin/tidegate
	@scripts/setup.sh

# The recipe becomes tidegate itself, so that Ctrl-C reaches it and nothing else stands between.
run: setup  ## everything needed, then the demo: server, Spark worker, a live source, something to look at
	@TIDEGATE_HOME="$${TIDEGATE_HOME:-$(CURDIR)/.home}" exec $(BIN)/tidegate up --demo

lint: setup  ## everything needed, then style and types
	$(BIN)/ruff check --extend-exclude .home .
	$(BIN)/ruff format --check --extend-exclude .home .
	$(BIN)/mypy

test: lint  ## everything needed, then style, types and all tests
	@scripts/browser.sh
	$(BIN)/python -m pytest -m "not crash" --numprocesses $(TEST_PROCESSES) --dist loadfile
	$(BIN)/python -m pytest -m crash --numprocesses $(TEST_PROCESSES) --dist loadfile

check: lint  ## style, types and the tests of what changed since origin/main or the last commit
	@$(BIN)/python scripts/check.py $(BASE)

bench: setup  ## the benchmark table
	$(BIN)/python -m benchmarks

crash: setup  ## kill and restart under load for CRASH_MINUTES (5), then count
	$(BIN)/python -m tests.crash.loop --minutes $(CRASH_MINUTES)

soak: setup  ## the same for SOAK_MINUTES (60), then random requests, statements and state, then kills of backups and streams
	$(BIN)/python -m tests.crash.loop --minutes $(SOAK_MINUTES)
	$(BIN)/python -m tests.server.fuzz --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.sql.fuzz --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.sql.expressions.differential --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.query.differential --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.query.processes.kills --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.topics.groups.soak --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.contract.state_walk --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.checkpoint.rescale_walk --seeds $(KILL_ROUNDS)
	$(BIN)/python -m tests.checkpoint.local.ipc_walk --seeds $(KILL_ROUNDS)
	$(BIN)/python -m tests.faults.soak --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.faults.soak --operator dedup --minutes $(FUZZ_MINUTES)
	$(BIN)/python -m tests.faults.dedup_walk --seeds $(KILL_ROUNDS)
	$(BIN)/python -m tests.dedup.load --minutes $(FUZZ_MINUTES) --rate 2000
	$(BIN)/python -m tests.server.live_soak $$(( $(FUZZ_MINUTES) * 60 ))
	$(BIN)/python -m tests.upkeep.backup.kills --rounds $(KILL_ROUNDS)
	$(BIN)/python -m tests.streams.kills --rounds $(KILL_ROUNDS)

shake: setup  ## all tests in an order of chance, beside processes that take the processors, with more examples
	$(BIN)/python -m tests.shake --examples 5 -m "not crash"

wheel: setup  ## a wheel in build/dist, tried in an empty environment: tidegate up --demo
	@$(BIN)/python scripts/wheel.py --try

sbom: setup  ## build/sbom.cdx.json: what the package is made of, in CycloneDX
	@$(BIN)/python scripts/sbom.py build/sbom.cdx.json
