# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin
# Any build will do; where one for the CPU alone is at hand, it spares gigabytes.
TORCH ?= torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help demo test test-torch lint format bench bench-hw paper masks docs clean prove mutate coverage soak fuzz

help:
	@echo "make demo        set up, then run the whole flow on a built-in layer"
	@echo "make test        set up, then run the tests"
	@echo "make test-torch  the tests that need PyTorch ($(TORCH))"
	@echo "make lint        ruff and mypy, as pre-commit runs them"
	@echo "make format      ruff's formatter"
	@echo "make bench       the benchmarks: a table, and build/bench.json (DATA=DIR: real weights too)"
	@echo "make bench-hw    all decoders side by side on an FPGA, and a sweep, into docs/: hours (DATA=DIR too)"
	@echo "make paper       the paper's tables and figures into docs/paper: hours (DATA=DIR, CIFAR=DIR)"
	@echo "make masks       what each effort gains, and other methods beside it, into docs/: half an hour (DATA=DIR)"
	@echo "make prove       the formal proofs, each with its cover and its planted faults"
	@echo "make mutate      the mutation score of the benches, and what they did not catch"
	@echo "make coverage    Python branches by the tests, Verilog lines and toggles by the benches"
	@echo "make soak        random traffic on random decoders, for SECONDS=60 (SEED=0)"
	@echo "make fuzz        100,000 mutated files for the readers"
	@echo "make docs        the waveform of docs/decoder.md"
	@echo "make clean       remove .venv and build"

demo: .venv/installed-sim
	$(BIN)/lrbi demo

test: .venv/installed-test
	$(BIN)/python -m pytest -n 2

test-torch: .venv/installed-test .venv/installed-paper
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pytest -m torch

# Type checkers do not see through an editable install, so mypy gets a real one.
lint: .venv/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/lib build/typed
	$(BIN)/python -m pip install --quiet --no-deps --target build/typed .
	cd build && MYPYPATH=typed ../$(BIN)/mypy --config-file ../pyproject.toml -p lrbi

format: .venv/installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed-bench
	$(BIN)/python -m benchmarks --json build/bench.json $(if $(DATA),--data $(DATA))

# What was measured before is taken from the cache.
bench-hw: .venv/installed-bench
	$(BIN)/python -m benchmarks.hardware $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.sweep

# Training runs are kept in build/paper, and not run again. DATA holds mnist/ and weights/.
paper: .venv/installed-paper
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m benchmarks.paper $(if $(DATA),--data $(DATA)) $(if $(CIFAR),--cifar $(CIFAR)) $(STEPS)

masks: .venv/installed-peers
	$(BIN)/python -m benchmarks.masks --data $(or $(DATA),$(error make masks needs DATA=DIR)) $(STEPS)

VERIFY := $(BIN)/python -m verification

SECONDS ?= 60
SEED ?= 0

prove mutate fuzz: .venv/installed-verify
	$(VERIFY) $@

coverage: .venv/installed-test .venv/installed-verify
	$(VERIFY) coverage

soak: .venv/installed-verify
	$(VERIFY) soak --seconds $(SECONDS) --seed $(SEED)

# The picture in docs/decoder.md; a test holds it to what the decoder does.
docs: .venv/installed-docs
	$(BIN)/python docs/waveform.py

clean:
	rm -rf .venv build

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed-%: pyproject.toml .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@
