# Every job of CI is one of these verbs, and each sets up what it needs by itself.
#   make run     start a node with the embedded default
#   make test    the quick suite, compiled and pure
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PYTEST := nice -n 5 $(PY) -m pytest
# Hot modules are those with C types beside them; a change in one asks for a new build.
HOT := $(wildcard $(patsubst %.pxd,%.py,$(shell find src -name '*.pxd')) $(shell find src -name '*.pxd'))
# The tests of the rooms that hold one run a second time on the sources.
PURE := $(patsubst src/polybus/%/,tests/%,$(sort $(dir $(filter %.pxd,$(HOT)))))
INSTALLED := $(VENV)/.installed
BUILT := $(VENV)/.built
ARGS ?=
# A notice of pip is none of ours.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run test matrix demo lint fmt types interop crash fuzz soak browser spark bench docs clean
.DEFAULT_GOAL := test

setup: $(BUILT)

$(INSTALLED): requirements/build.txt requirements/runtime.txt requirements/extras.txt requirements/dev.txt
	@sh scripts/make_venv.sh $(PYTHON) $(VENV)
	@touch $@

$(BUILT): $(INSTALLED) pyproject.toml setup.py src/polybus/_version.py $(HOT)
	@echo "setup: building the compiled modules" >&2
	@$(PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

run: $(BUILT)
	@$(VENV)/bin/polybus serve $(ARGS)

# The whole suite on the compiled modules, then what they serve again as plain Python.
test: $(BUILT)
	$(PYTEST) $(ARGS)
	@sh scripts/pytest_some.sh env POLYBUS_PURE=1 $(PYTEST) $(PURE) $(ARGS)

# Who reaches whom, how each case ends and how long a call takes, from a real run.
matrix: $(BUILT)
	@nice -n 5 $(PY) -m tests.matrix

# Programs of all five systems at work on one node for half a minute, then Spark's report of it.
demo: $(BUILT)
	@$(PY) -m pip install --quiet --requirement requirements/spark.txt
	@$(PY) -m examples.demo $(ARGS)

lint: $(BUILT)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/codespell
	$(VENV)/bin/deptry .
	$(PY) scripts/check_text.py

fmt: $(BUILT)
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

types: $(BUILT)
	$(PY) -m mypy

# A selection that is empty is said and passes.
crash fuzz soak: $(BUILT)
	@sh scripts/pytest_some.sh $(PYTEST) -m $@ $(ARGS)

# Against the real programs of others: the five systems' clients and servers, then a browser and Spark.
interop: $(BUILT)
	@sh scripts/pytest_some.sh $(PYTEST) -m "interop and not browser" $(ARGS)
	@$(MAKE) --no-print-directory browser spark

# Needs Chromium (apt-get install chromium) and npm. With PICTURES=docs/img in the environment it draws those anew.
browser: $(BUILT)
	@$(PY) -m pip install --quiet --requirement requirements/browser.txt --requirement requirements/spark.txt
	@sh scripts/pytest_some.sh $(PYTEST) -m browser $(ARGS)

spark: $(BUILT)
	@$(PY) -m pip install --quiet --requirement requirements/spark.txt
	@sh scripts/pytest_some.sh $(PYTEST) -m "spark and not browser" $(ARGS)

# One of them: make bench BENCH=gsb
BENCH ?= *
bench: $(BUILT)
	@for program in benches/$(BENCH)/run.py; do \
		if [ -f "$$program" ]; then $(PY) "$$program" $(ARGS) || exit 1; \
		else echo "bench: nothing to run in $$program"; fi; done

# The site is in build/site; open index.html there.
docs: $(BUILT)
	@$(PY) -m pip install --quiet --requirement requirements/docs.txt
	$(PY) scripts/check_docs.py
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	$(PY) scripts/check_docs.py --site build/site

clean:
	rm -rf build demo-data dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage $(VENV)
	find src -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
