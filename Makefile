# QI-DPFL: every task of the repository. `make` alone lists them.

PYTHON ?= python3
# Where torch comes from: CPU wheels by default; a CUDA build by e.g. TORCH_INDEX=https://download.pytorch.org/whl/cu130
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# What `make demo` learns: digits (embedded) or mnist (from QIDPFL_DATA_DIR, or downloaded once)
DATASET ?= digits

VENV := .venv
BIN := $(VENV)/bin
PROJECTS := shared server client experiments qidpfl
# The package of each project: that of `qidpfl` has its name, the others have it as a prefix.
PACKAGES := $(foreach p,$(PROJECTS),$(p)/$(patsubst qidpfl_qidpfl,qidpfl,qidpfl_$(p)))
# The bridge to Flower is checked without Flower, whose pins differ from ours: it has an environment of its own.
FLOWER := integrations/flower
INSTALLED := $(VENV)/.installed
SITE_TOOLS := $(VENV)/.site-tools
MANIFESTS := VERSION constraints.txt pyproject.toml $(PROJECTS:%=%/pyproject.toml)
# Many tests wait for processes: twice as many workers as cores. A file stays on one worker, so its fixtures are made once.
# Files run in the order of their folders: the containers and the live tests first, the short ones fill the gaps.
PARALLEL := -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder
ALL_TESTS := $(PARALLEL) -m "not long"

.DEFAULT_GOAL := help
.PHONY: help setup flower demo test test-long test-gpu unit unit-services unit-others lint types coverage check release hashes format bench bench-quick experiments docs site images up down logs ps results test-docker kubernetes clean

help:  ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## create .venv and install everything into it

$(INSTALLED): $(MANIFESTS)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("QI-DPFL needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python .ci/pip_install.py --upgrade --constraint constraints.txt pip
	@index=$$($(BIN)/python docker/torch_index.py $(TORCH_INDEX)); \
	echo "installing (about a minute) ..."; \
	$(BIN)/python .ci/pip_install.py --constraint constraints.txt $$index --group dev --editable "./shared[torch,parquet]" --editable "./server[postgres,objectstore,eval,tensorboard,mlflow,traces]" --editable "./client[train,traces]" --editable "./experiments[slurm]" --editable "./qidpfl[pandas,polars]"
	@touch $@

flower:  ## create integrations/flower/.venv with Flower, the client and the bridge between them
	$(PYTHON) -m venv $(FLOWER)/.venv
	@index=$$($(PYTHON) docker/torch_index.py $(TORCH_INDEX)); \
	echo "installing (some minutes) ..."; \
	$(FLOWER)/.venv/bin/python -m pip install --quiet --constraint $(FLOWER)/constraints.txt $$index --editable "./shared[torch]" --editable "./client[train]" --editable "./$(FLOWER)[simulation]"

demo: $(INSTALLED)  ## coordinator and ten clients on this machine, live; DATASET=mnist for MNIST, HOLD=1 keeps the dashboard
	$(BIN)/qidpfl demo --dataset $(DATASET)$(if $(HOLD), --hold)

test: $(INSTALLED)  ## run all tests but the long ones, in minutes
	$(BIN)/python $(ALL_TESTS)

test-long: $(INSTALLED)  ## run all tests, also full kill matrices, large fuzz runs, soaks and faults of containers
	$(BIN)/python $(PARALLEL) --durations 20

test-gpu: $(INSTALLED)  ## run the tests of training and the attacks on a GPU; needs a CUDA build of torch
	@$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit("make test-gpu needs a GPU and a CUDA build of torch, see README.md")'
	QIDPFL_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/integration/training tests/integration/attacks

unit: $(INSTALLED)  ## run the tests that need no torch and start no process, in seconds
	@$(MAKE) --no-print-directory --output-sync --jobs 2 unit-services unit-others

# Two processes without a scheduler between them: each collects its own half only.
unit-others: UNIT := tests/unit/shared tests/unit/experiments tests/unit/qidpfl tests/unit/flower tests/unit/benchmarks tests/unit/test_docstring_examples.py
unit-services: UNIT := tests/unit/server tests/unit/client
unit-services unit-others: $(INSTALLED)
	@$(BIN)/python -m pytest $(UNIT) -q -m "not slow" --hypothesis-profile short -p no:schemathesis -p no:xdist

lint: $(INSTALLED)  ## check style, formatting and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(INSTALLED)  ## check the types, strictly
	$(BIN)/mypy $(PACKAGES) $(FLOWER)/qidpfl_flower $(FLOWER)/examples tests benchmarks examples

# Each process of the tests writes a file of its own; the floor is in pyproject.toml.
coverage: $(INSTALLED)  ## run the tests and fail if they cover less than the floor
	$(BIN)/coverage erase
	$(BIN)/coverage run $(ALL_TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: lint types coverage  ## lint, types and tests with coverage

release: $(INSTALLED)  ## build sdists and wheels of all distributions into dist/ and test them in a new environment
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) .ci/release $(PROJECTS)

$(SITE_TOOLS): $(INSTALLED) constraints.txt pyproject.toml
	@echo "installing MkDocs ..."
	@$(BIN)/python .ci/pip_install.py --constraint constraints.txt --group docs
	@touch $@

# Material says at every start that it is maintained until 2027 only.
docs site: export NO_MKDOCS_2_WARNING = 1

docs: $(SITE_TOOLS)  ## serve the documentation site on this machine, without any other host
	$(BIN)/mkdocs serve --strict

site: $(SITE_TOOLS)  ## build the documentation site strictly, into build/site
	$(BIN)/mkdocs build --strict --quiet

hashes: $(INSTALLED)  ## write constraints.hashes.txt after a change of constraints.txt; needs the network
	$(BIN)/python .ci/update_hashes.py

format: $(INSTALLED)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## measure core, coordinator, evaluation, gradients and fleet, each against a plain or known one in the same run
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/coordinator.py
	$(BIN)/python benchmarks/rounds.py --rounds 600
	$(BIN)/python benchmarks/polls.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/gradients.py
	$(BIN)/python benchmarks/fleet.py

bench-quick: $(INSTALLED)  ## say what got slower than the stored figures, in under two minutes
	$(BIN)/python benchmarks/quick.py

# What `make experiments` runs, each at the scale that its settings say (SCALE=full for all of the paper's)
DATASETS ?= mnist emnist cifar10
SEEDS ?= 5
SCALE ?=

experiments: $(INSTALLED)  ## the paper's methods on live services, with figures and claims, in results/; hours
	@failed=; for dataset in $(DATASETS); do \
		$(BIN)/qidpfl-experiments run --dataset $$dataset --seeds $(SEEDS) $(if $(SCALE),--scale $(SCALE)) \
			|| failed="$$failed $$dataset"; \
	done; test -z "$$failed" || { echo "not all is well with:$$failed" >&2; exit 1; }

# Options of `docker build`, such as "--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130"
BUILD_OPTIONS ?=

images:  ## build the images qidpfl-server and qidpfl-client, tagged with the version and as latest
	@for image in server client; do \
		docker build --file Dockerfile.$$image --build-arg VERSION=$$(cat VERSION) $(BUILD_OPTIONS) \
			--tag qidpfl-$$image:$$(cat VERSION) --tag qidpfl-$$image:latest . || exit 1; \
	done

# Which files make up the testbed in containers: e.g. OVERLAYS="gpu", or OVERLAYS="postgres mnist"
OVERLAYS ?=
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) \
	-f docker-compose.yml $(OVERLAYS:%=-f docker-compose.%.yml)

# Create the results folder here, writable for all users: the engine would create it for its own user only.
up:  ## coordinator and clients in containers until the task has ended; OVERLAYS="gpu", "mnist", "postgres"
	@test -d results || mkdir -m 777 results
	$(COMPOSE) up --build --exit-code-from coordinator

down:  ## remove the containers, their networks and volumes
	$(COMPOSE) down --volumes --remove-orphans

logs:  ## follow what the containers say
	$(COMPOSE) logs --follow

ps:  ## list the containers
	$(COMPOSE) ps

# Remove the empty folder that the engine may have created for its own user.
results:  ## copy the results of the containers' task out of its volume, to results/testbed
	@rmdir results 2>/dev/null || true
	@mkdir -p results/testbed
	@$(COMPOSE) run --rm --no-deps -T --entrypoint sh coordinator -c \
		'qidpfl-server export testbed --out /tmp/results >/dev/null && tar -C /tmp/results -c .' \
		| tar -C results/testbed -x --no-same-owner && ls results/testbed/*

kubernetes: $(INSTALLED)  ## a testbed on the cluster of kubectl: coordinators, database, object store, clients
	deploy/kubernetes/overlays/testbed/make-secrets $(BIN)/qidpfl-server
	kubectl apply --kustomize deploy/kubernetes/overlays/testbed

test-docker: $(INSTALLED)  ## run the tests with containers; needs a Docker engine
	$(BIN)/python -m pytest tests/docker --durations 10 -rs

clean:  ## remove the environment and all caches
	rm -rf $(VENV) build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
