# On a fresh machine, `make demo` and `make test` each do everything they need.

PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2-135m-q4_1
PROMPTS ?= \
  "Explain in three sentences why the sky is blue." \
  "Rewrite this text in the past tense: The museum opens at nine. Visitors leave their bags at the entrance and follow a guide through the old mill. She explains how the wheel turns the stones, and at the end everybody gets a small bag of flour." \
  "Write a Python function that counts the words of a text, and show how to use it."
MAX_NEW_TOKENS ?= 128
# Two processes of one thread each finish sooner than one process of two.
WORKERS ?= 2
# Set, it installs by hash what locks/dev.lock has, and nothing else. Not the default: a mirror may have
# other builds of a version than the default index (torch for CPUs, for one), whose hashes differ.
LOCKED ?=
KILLS ?= 50
REPORT ?= chaos.json
MINUTES ?= 10
CASES ?= 200000

BIN := $(VENV)/bin
# Two marks: all packages, and those alone that generate text, which are few: no torch.
READY := $(VENV)/.ready
ENGINE := $(if $(LOCKED),$(READY),$(VENV)/.ready-engine)
# Where no compiler built the kernels, torch computes.
LIBRARY := slipstream/models/native/lib/libslipstream_native.so
SOURCES := pyproject.toml hatch_build.py $(wildcard slipstream/models/native/src/*) $(if $(LOCKED),locks/dev.lock,constraints.txt)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The kernels' objects are kept: tests that build packages do not compile the same sources again.
CACHED_CXX = CXX="$${CXX:-$$($(PYTHON) tests/support/deployment/objects.py $(VENV)/objects)}"

# Runs a command and prints what it took, behind the name of the stage.
STAGE = @sh -c 'began=$$(date +%s); name=$$1; shift; "$$@" && echo "$$name: $$(($$(date +%s) - began)) s"' stage
# Python compiles a module when it is first imported: the first command imports few. Services that
# tests start must not wait for that, so all are compiled for them.
define INSTALL
	@$(PYTHON) -c 'import sys; sys.exit("Slipstream needs Python 3.11 or later; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(STAGE) "virtual environment" $(PYTHON) -m venv $(VENV)
	$(STAGE) "kernels compiled" env $(CACHED_CXX) $(BIN)/pip install --quiet --no-deps --editable .
	$(STAGE) "packages" env $(CACHED_CXX) $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable
endef

.PHONY: help install model demo test chaos fuzz fuzz-files check lint package pure sanitize compat bench gpu protos locks forwards docs fmt clean

help:           ## show the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/' | expand -t 12

install: $(READY) ## create the virtual environment with the complete command line

$(READY): $(SOURCES)
ifeq ($(LOCKED),)
	$(INSTALL) '.[dev]'
	$(STAGE) "modules compiled" sh -c "$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true"
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement locks/dev.lock
	$(CACHED_CXX) $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
endif
	@touch $(READY) $(ENGINE)

ifeq ($(LOCKED),)
# Kernels for this machine alone, half the time where it has AVX2 alone; `make test` compiles all.
$(ENGINE): export SLIPSTREAM_KERNELS := host
$(ENGINE): $(SOURCES)
	$(INSTALL) ".[$$(test -f $(LIBRARY) && echo engine || echo torch)]"
	$(STAGE) "model" $(BIN)/slipstream models pull $(MODEL)
	$(STAGE) "first start" $(BIN)/slipstream generate --target $(MODEL) --max-new-tokens 1 --quiet Hi
	@touch $(ENGINE)
endif

model: $(READY) ## fetch the model, in bfloat16 and in 4 bits, once
	@$(BIN)/slipstream models pull smollm2-135m
	@$(BIN)/slipstream models pull $(MODEL)

demo: $(ENGINE) ## generate text with draft and target, next to the target alone, for each of PROMPTS
	@$(BIN)/slipstream generate --target $(MODEL) --max-new-tokens $(MAX_NEW_TOKENS) --compare $(PROMPTS)

test: model lint ## static checks and every test
	@$(BIN)/python tests/helm_tool.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --require-model --numprocesses $(WORKERS) --dist worksteal

chaos: $(READY) ## kill, stop and cut off services for a long time; KILLS of each role, REPORT as JSON
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/chaos --chaos --chaos-kills $(KILLS) --chaos-report $(REPORT)

fuzz: $(READY)  ## send messages of every kind to all services for MINUTES; SEED to repeat
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

fuzz-files: $(READY) ## load CASES broken and hostile files of every kind; SEED to repeat
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.files --cases $(CASES) $(if $(SEED),--seed $(SEED))

check: test package ## everything CI runs, and the built packages

lint: $(READY) ## format, lint, types, import rules and the wire
	@VENV=$(VENV) .ci/protos check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p slipstream -p slipstream_draft -p slipstream_gateway -p slipstream_router -p slipstream_target
	$(BIN)/lint-imports --no-logo

package: $(READY) ## sdist -> wheel -> clean environment -> import everything
	$(BIN)/python .ci/package.py

pure: model     ## build, install and run as where there is no C++ compiler
	$(BIN)/python .ci/pure.py

sanitize: $(READY) ## the tests of the native kernels under AddressSanitizer and UBSan; needs g++
	$(BIN)/python .ci/sanitize.py

compat: ## the tests with the oldest supported torch and transformers
	.ci/compat

bench: model ## speed and identity of all methods on the bundled prompts
	$(BIN)/slipstream bench speed --prompts slipstream/data/prompts.jsonl --methods plain,ngram,glide,glide+cape+svip

gpu: model ## check and measure everything on a GPU, in 10 minutes or so; figures in gpu-results
	@mkdir -p gpu-results; failed=0; target="--target smollm2-135m"; \
	short="$$target --max-new-tokens 64 --limit 13"; \
	run() { name=$$1; shift; \
	  timeout 180 $(BIN)/slipstream bench "$$@" --device cuda --json gpu-results/$$name.json || failed=1; }; \
	OMP_NUM_THREADS=1 timeout 300 $(BIN)/python -m pytest -q -m gpu tests/unit/models || failed=1; \
	run speed speed $$short --methods plain,ngram,best; \
	run sampled speed $$short --methods plain,best --temperature 1; \
	run llama-1b cost --shape llama-3.2-1b --rows 1,8,64; \
	run llama-8b cost --shape llama-3-8b --rows 1,2,4,8,16,32,64,128; \
	run cost cost $$target --rows 1,2,4,8,16,32,64,128; \
	run serve serve $$short --methods plain,auto --repeats 1 --concurrency 1,4,16,64; \
	exit $$failed

protos: $(READY) ## regenerate slipstream/rpc/v1 from protos/
	VENV=$(VENV) .ci/protos

locks: ## write locks/ anew from pyproject.toml and constraints.txt
	VENV=$(VENV) .ci/locks

forwards: model ## record the forwards of known models anew, where other bits are meant
	$(BIN)/python .ci/forwards.py

docs: $(READY) ## what is written out of the code, and all pages as a site in site/
	$(BIN)/python tests/test_docs_options.py
	$(BIN)/python tests/test_docs_reference.py
	PYTHONPATH=tests $(BIN)/python tests/test_docs_architecture.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

fmt: $(READY) ## format and sort imports
	$(BIN)/ruff check --fix --select I,UP .
	$(BIN)/ruff format .

clean: ## remove what the targets above created, the model cache excepted
	rm -rf $(VENV) $(VENV)-compat $(VENV)-locks dist build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis chaos.json
