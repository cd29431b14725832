# make setup   the environment .venv with everything the tests need
# make demo    set up, then Whisper on real recordings and the paper's tables from embedded models, in about three minutes
# make quick   the fast tests of models, searches, LMs, recogniser and workflows, in under 90 seconds on two cores
# make test    set up, then lint, types and every test but the long attacks
# make attacks every attack on audio, text, manifests, models and commands
# make cuda    everything that needs a GPU, and its record in docs/results
# make fuzz    the property-based tests on newly drawn cases, ROUNDS times
# make mutants small faults put into the core, FAULTS of them, one at a time: which do the tests notice?
# make bundle  the embedded models and recordings, from a study's outputs (PLAN=configs/study/small.yaml)
# make bundle-speech  the embedded recordings of real speech with their LMs and weights, from CORPORA
# make docs    the site from docs/, into build/docs, links checked
# make help    this list
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := train,synth,natural,hf,openai,whisper-metrics,onnx,kernels,serve,dev

ROUNDS ?= 5
QUICK := $(addprefix tests/,adapters evaluation ilm lm losses models recogniser runtime search testing workflows) \
  $(wildcard tests/test_*.py)
FAULTS ?= 400
PLAN ?= configs/study/small.yaml
STUDY ?= out/study/$(basename $(notdir $(PLAN)))
CORPORA ?= corpora
WHISPER ?= openai/whisper-tiny.en
JUDGE ?= openai/whisper-base.en

.PHONY: help setup demo quick test attacks cuda fuzz mutants lint types format bundle bundle-speech docs clean

help:
	@sed -n 's/^# //p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt src/ilme/__init__.py # which has the version
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	touch $(STAMP)

demo: setup
	$(BIN)/ilme demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

quick: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not attacks" $(QUICK)

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not attacks"

attacks: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/attacks

# no setup: a machine with a GPU has its own torch, beside which only pytest and a few packages are needed
cuda:
	OMP_NUM_THREADS=1 PYTHONPATH="src:$$PYTHONPATH" $(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.cuda.run

fuzz: setup
	for round in $$(seq $(ROUNDS)); do \
	  HYPOTHESIS_PROFILE=fuzz OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -x \
	    $$(grep -rl "^from hypothesis import" tests --include="test_*.py") || exit 1; \
	done

mutants: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation.run --count $(FAULTS)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bundle: setup
	$(BIN)/ilme study $(PLAN) --out $(STUDY) --only sets
	$(BIN)/ilme study bundle $(STUDY)

bundle-speech: setup
	for stage in sets text weights pack; do \
	  OMP_NUM_THREADS=1 $(BIN)/python -m experiments.speech_bundle $$stage --corpora $(CORPORA) \
	    --model $(WHISPER) --judge $(JUDGE) || exit 1; \
	done

docs: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python docs/reference/build.py
	$(BIN)/zensical build --strict --config-file mkdocs.yml

clean:
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .hypothesis
