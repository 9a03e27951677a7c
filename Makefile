# `make demo` and `make test` are all a fresh machine needs (Python 3.11); `make` lists the verbs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
# The CUDA build where the NVIDIA driver is, the CPU build elsewhere. Override: make VARIANT=cpu demo
VARIANT ?= $(if $(wildcard /dev/nvidiactl),gpu,cpu)
UV := .uv/bin/uv
BIN := .venv/bin
# The newest release is the default; `make image RELEASE=23.06` builds another one.
NEWEST := $(lastword $(sort $(basename $(notdir $(wildcard platform/trackbed/release/*.toml)))))
RELEASE ?= $(NEWEST)
REQUIREMENTS := requirements
# What this machine runs is the newest release, whatever image is built.
LOCKS := $(REQUIREMENTS)/$(NEWEST)

# Where wheels come from is the machine's business, never a file's: a folder of wheels if the machine has one for pip,
# else uv's own knowledge of where the CPU build of torch is.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
else ifeq ($(VARIANT),cpu)
export UV_TORCH_BACKEND ?= cpu
endif
export UV_LINK_MODE ?= copy
export OMP_NUM_THREADS ?= 1
# Where a machine forbids bytecode, every start of a rank would compile torch anew: 7 s instead of 2.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo validate monitor test test-containers mutation lint types render check-render lock upgrade image image-gpu reproduce clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

setup: .venv/.runtime-$(VARIANT)  ## make .venv from the locked files

$(UV): $(REQUIREMENTS)/boot.lock
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not on this machine: install Python 3.11, or run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv module: install it (Debian: apt-get install python3.11-venv)" >&2; exit 2; }
	@rm -rf .uv && $(PYTHON) -m venv .uv
	@.uv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $<

.venv/.runtime-$(VARIANT): $(LOCKS)/$(VARIANT).lock $(LOCKS)/build.lock pyproject.toml | $(UV)
	@rm -f .venv/.runtime-* .venv/.dev
	@test -x $(BIN)/python || $(UV) venv -q --python $(PYTHON) .venv
	$(UV) pip sync -q --python $(BIN)/python --require-hashes --build-constraints $(LOCKS)/build.lock $<
	@$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.dev: $(REQUIREMENTS)/dev.lock .venv/.runtime-$(VARIANT)
	$(UV) pip install -q --python $(BIN)/python --require-hashes -r $<
	@touch $@

demo: setup  ## without Docker: validate this machine, fine-tune a small model, show what came of it
	@$(BIN)/trackbed demo

validate: setup  ## check this machine and the stack
	@$(BIN)/trackbed validate

monitor: setup  ## TensorBoard over every run
	@$(BIN)/trackbed monitor

test: .venv/.dev  ## all tests that need no container engine
	@$(BIN)/python -m pytest -m "not container"

test-containers: .venv/.dev  ## build the image, start the compose stack, read it, take it down
	@$(BIN)/python -m pytest -m container

mutation: .venv/.dev  ## change every comparison of every check, one at a time: does a row of the rules' table turn red?
	@$(BIN)/python tests/mutation.py

lint: .venv/.dev  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/.dev  ## mypy, strict
	@$(BIN)/mypy

render: setup  ## write everything that names a version from the release
	@$(BIN)/trackbed release render
	@$(BIN)/trackbed validate --docs > docs/checks.md

check-render: setup  ## fail when a rendered file differs from the release
	@$(BIN)/trackbed release render --check
	@$(BIN)/trackbed validate --docs | diff -q - docs/checks.md >/dev/null || { echo "error: docs/checks.md differs from the checks: make render" >&2; exit 2; }

lock: setup  ## work out the locked files of every release from its pins
	@$(BIN)/trackbed release lock

UNTIL ?= $(shell date +%F)
upgrade: setup  ## move the pins of RELEASE to the newest that fit UNTIL a day (today); then render, lock, show the diff
	@$(BIN)/trackbed release upgrade $(RELEASE) --until $(UNTIL)
	@$(BIN)/trackbed release render
	@$(BIN)/trackbed release lock $(RELEASE)
	@git --no-pager diff --stat

image: setup  ## build the CPU image of RELEASE, and hold it against the release
	@$(MAKE) --no-print-directory build-cpu

image-gpu: setup  ## build the GPU image of RELEASE; VENDOR=nvidia adds NVIDIA's own archives
	@$(MAKE) --no-print-directory build-gpu

# The source revision is the image's business only: it is not in the layers, so that a commit alone rebuilds nothing.
build-%:
	@args="$$($(BIN)/trackbed release args $(RELEASE))"; set -x; \
	docker build --target $* --tag trackbed:$(RELEASE)-$* $$args \
	    --build-arg REVISION=$$(git describe --always --dirty --abbrev=12) $(if $(VENDOR),--build-arg VENDOR=$(VENDOR)) \
	    $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) $(BUILD_ARGS) .
	@docker run --rm trackbed:$(RELEASE)-$* trackbed release check --release $(RELEASE)
	@docker run --rm --network none trackbed:$(RELEASE)-$* trackbed validate --level image

reproduce: setup  ## build the CPU image of RELEASE twice from nothing, and name the files that differ
	@args="$$($(BIN)/trackbed release args $(RELEASE))"; for n in 1 2; do \
	    docker builder prune --force --filter type=exec.cachemount >/dev/null; \
	    docker build -q --no-cache --target cpu --tag trackbed:reproduce-$$n $$args .; done
	@image/compare trackbed:reproduce-1 trackbed:reproduce-2; code=$$?; docker image rm -f trackbed:reproduce-1 trackbed:reproduce-2 >/dev/null; exit $$code

clean:  ## remove the environment, never the runs
	rm -rf .venv .uv build
