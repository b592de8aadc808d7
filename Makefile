# The commands of the project. Each sets up what it needs first (scripts/setup.sh, a fraction of a second when nothing changed).

ITERATIONS ?= 3
PROFILE    ?= quickstart
# Workers of the test suite: one more than the two cores that it is made for, since tests of sessions wait a good part of their time.
WORKERS    ?= 3
# More for pytest, e.g. make test ARGS="tests/warehouse -x"
ARGS       ?=

ROOMS = pipelines assets models annotation agent sandbox warehouse

PYTHON_IN_VENV = .venv/bin/python
FLYWHEEL       = .venv/bin/flywheel
# One file's tests stay together: they share its browsers and its trained models.
PYTEST         = $(PYTHON_IN_VENV) -m pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup run ui doctor test test-slow test-ci test-long test-all audit check format lint types imports bench mutants lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from the lock and find a Chromium
	@scripts/setup.sh

run: setup ## run iterations: ITERATIONS=3 PROFILE=quickstart
	@$(FLYWHEEL) run --iterations $(ITERATIONS) --profile $(PROFILE)

ui: setup ## start the Dagster page on loopback and print its address
	@$(FLYWHEEL) ui

doctor: setup ## check every part of this machine's set-up and say how to fix it
	@$(FLYWHEEL) doctor

test: setup ## the tests but the slow and the long ones: WORKERS=3 ARGS=
	$(PYTEST) $(ARGS)

test-slow: setup ## the slow tests alone, seconds to a minute each
	$(PYTEST) -m "slow and not long and not gpu" $(ARGS)

test-ci: setup ## what continuous integration runs: all but the long ones, and of these those that are marked ci
	$(PYTEST) -m "(not long or ci) and not gpu" $(ARGS)

test-long: setup ## the long tests alone, minutes each: hours
	$(PYTEST) -m "long and not gpu" $(ARGS)

test-all: setup ## all tests that this machine can run
	$(PYTEST) -m "not gpu" $(ARGS)

check: lint types imports audit ## ruff, mypy, the import contract and bandit (make -k check: all four, whatever fails)

format: setup ## format the code and sort its imports
	$(PYTHON_IN_VENV) -m ruff check --select I --fix
	$(PYTHON_IN_VENV) -m ruff format

lint: setup
	$(PYTHON_IN_VENV) -m ruff check
	$(PYTHON_IN_VENV) -m ruff format --check

types: setup
	$(PYTHON_IN_VENV) -m mypy

imports: setup
	.venv/bin/lint-imports --no-logo

audit: setup ## bandit, and semgrep where it is installed: each finding is fixed, or answered in pyproject.toml or beside the line
	.venv/bin/bandit -q -c pyproject.toml -r $(ROOMS)
	@if command -v semgrep >/dev/null; \
	then semgrep scan --config scripts/semgrep.yaml --error --quiet --metrics=off --disable-version-check -j 1 $(ROOMS); \
	else echo "semgrep is not installed: the rules of scripts/semgrep.yaml were not asked"; fi

bench: setup ## the benchmarks, one after the other: a table each; hours, most of them for iteration_curves
	@for name in env_steps game_frames game_references terminal leases nodes recording recording_intake desktop_steps soak fuzz_actions fuzz_imports fuzz_doors memory lessons_beside_tasks seed_policies iteration_curves profile_runs novelty reserved overhead reproducibility generation quantised serving gateway harness vllm packing sft_throughput simulation_accuracy streaming merge rl_conformance analyses forks critic_fit rl_beside_trl pixels plan_accuracy importing osworld_examples near_duplicates routing_scale sampling_scale orm gpu_training zero_memory annotators growth damage release_gate blame ct_objectives kills resume power_cut object_store ray_overhead; do echo "== benchmarks/$$name"; $(PYTHON_IN_VENV) -m benchmarks.$$name || exit 1; done

mutants: setup ## mutation testing of what decides, module by module: hours (ARGS=--list says which, ARGS="losses gate" some)
	nice -n 10 $(PYTHON_IN_VENV) scripts/mutants.py $(ARGS)

lock: ## renew constraints.txt from pyproject.toml (ARGS=--upgrade: take newer versions)
	@scripts/lock.sh $(ARGS)

clean: ## remove caches and builds; .venv and .flywheel/ stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
