# `make spec` and `make test` do everything on a fresh machine; the rest builds on them.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
# One thread in each of JOBS processes: the inputs are small, and two pools would fight over the cores.
ALONE := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: help spec test test-all lint strength mutate bench docs docs-serve docs-test clean

help: ## say what there is to make
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plots,dev,precision]'
	touch $@

spec: $(VENV)/.installed ## check a third-party implementation, torch.nn, and print the report
	$(BIN)/transformer-spec check torch_nn

test: $(VENV)/.installed ## run the specification and every other test
	$(ALONE) $(BIN)/python -m pytest -q -n $(JOBS)

test-all: $(VENV)/.installed ## the same with many more random trials, and third parties: JAX, flax, ONNX, keras
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[jax,third-party,precision]'
	$(ALONE) $(BIN)/python -m pytest -q -n $(JOBS) -m "not browser" --spec-max-examples 1000

lint: $(VENV)/.installed ## ruff, and strict types in the reference
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

strength: $(VENV)/.installed ## what catches each known mistake, and how far below their bounds our errors stay
	$(ALONE) $(BIN)/python -m spec_tests.pitfalls.strength; status=$$?; $(BIN)/python -m website.strength_page; exit $$status

mutate: $(VENV)/.installed ## which changes of the NumPy half nothing notices; goes on where it was stopped
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutate]'
	$(BIN)/python -m spec_tests.meta.mutation

bench: $(VENV)/.installed ## speed beside others, in one run and one table of ratios
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks

DOCS := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'

docs: $(VENV)/.installed ## build the site into site/, and check every link, picture and formula of it
	$(DOCS)
	$(ALONE) $(BIN)/python -m website.build

docs-serve: $(VENV)/.installed ## build it, and show it at http://127.0.0.1:8000
	$(DOCS)
	$(ALONE) $(BIN)/python -m website.build --serve

docs-test: $(VENV)/.installed ## read the built site in Chromium: every page, both languages, search, tabs, dark mode, live
	$(DOCS)
	$(BIN)/python -m pytest -q -m browser website/test_browser.py

clean: ## remove what the others made
	rm -rf $(VENV) dist build site website/node_modules .pytest_cache .hypothesis .ruff_cache
