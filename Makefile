# Each goal does all set-up by itself, in .venv; it needs Python 3.10 to 3.14, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Hundreds of processes start, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Programs run as users run them, whose output is kept back until there is enough of it.
unexport PYTHONUNBUFFERED

comma := ,

# Make several goals: the types are checked beside the tests.
BESIDE = $(MAKE) --no-print-directory --jobs=2

# Of the long tests `make verify PART=1/8` runs an eighth, the first of eight.
PART ?= 1/1

.PHONY: help demo check small test quick-tests all-tests verify lint types bench mutants schema validation sample screenshots dist versions constraints docs clean

help:  ## Show the goals
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

demo: $(VENV)/installed  ## Analyse the sample trace
	$(BIN)/traceprof analyze sample_traces/training.sqlite

check: $(VENV)/installed-test  ## Lint, check the types and run the quick tests of what is changed
	@$(BESIDE) lint types quick-tests

test: $(VENV)/installed-test  ## Lint, check the types and run every test but the long ones
	@$(BESIDE) lint types all-tests

quick-tests: $(VENV)/installed-test
	$(BIN)/pytest -n auto -m 'not slow and not long' $$($(BIN)/python -m tests.touched)

# Rooms whose tests need neither torch nor a browser, and what they are tested with.
SMALL_TESTS = $(addprefix tests/,communication comparison frames host kernel_names ranks store)
SMALL_NEEDS = hypothesis import-linter jsonschema pytest pytest-rerunfailures pytest-xdist ruff

small: $(VENV)/installed-small  ## Lint the Python code and run the quick tests that need neither torch nor a browser (0.3 GB)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/pytest -n auto -m 'not slow and not long' $(SMALL_TESTS)

all-tests: $(VENV)/installed-test
	$(BIN)/pytest -n auto

verify: $(VENV)/installed-test $(VENV)/otava/installed $(VENV)/trackers/installed docs  ## Run the long tests: fuzzing, statistics, more real exports
	$(BIN)/pytest -n auto -m long --part $(PART)

lint: $(VENV)/installed-test  ## Lint, check the formatting and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/oxlint

types: $(VENV)/installed-test  ## Check the types, of the JavaScript, too
	$(BIN)/mypy
	DENO_NO_UPDATE_CHECK=1 $(BIN)/deno check --quiet dashboards/assets

schema: $(VENV)/installed  ## Write the schema of the JSON output anew
	$(BIN)/python -m traceprof.documents.schema traceprof/reports

# Without --quiet, which would hide the warnings from --strict, too.
docs: $(VENV)/installed-docs  ## Build the site into build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

validation: $(VENV)/installed  ## Write docs/validation.md from the recordings in TRACEPROF_TRACES
	$(BIN)/python docs/validation.py
	$(BIN)/python docs/reruns.py

sample: $(VENV)/installed-test  ## Write the sample traces anew, and beside each what analyze prints
	rm -f sample_traces/*.sqlite sample_traces/*.truth.json sample_traces/*.txt
	$(BIN)/python -m sample_traces.simulator ddp --gpus 2 --steps 6 --kernels-per-step 40 --seed 1 \
		-o sample_traces/ddp.sqlite
	$(BIN)/python -m sample_traces.simulator gloo -o sample_traces/gloo.sqlite
	for name in $$($(BIN)/python -c 'from sample_traces.simulator import SCENARIOS; print(*(n for n, s in SCENARIOS.items() if s.is_sample))'); do \
		$(BIN)/python -m sample_traces.simulator $$name -o sample_traces/$$name.sqlite || exit 1; \
	done
	for report in sample_traces/*.sqlite; do \
		$(BIN)/traceprof analyze --verbose $$report -o $${report%.sqlite}.txt || exit 1; \
	done

screenshots: $(VENV)/installed-test  ## Take the README's pictures of the dashboard, and a tour of all pages into build/tour (needs chromium)
	$(BIN)/python docs/screenshots.py
	$(BIN)/python docs/screenshots.py --tour build/tour

mutants: $(VENV)/installed-test  ## Change the code in 450 places and count how many changes make test notices (an hour)
	$(call install,$(VENV),--editable '.[mutants]')
	rm -rf build/mutants
	$(BIN)/python -m tests.mutants --per-room 50 --seed 1

dist: $(VENV)/installed-test  ## Build a wheel and an sdist, and run the demo with each in empty environments of every Python at hand
	rm -rf dist
	$(BIN)/hatchling build --directory dist
	$(BIN)/python -m tests.support.dist dist $(DIST_OPTIONS)

versions: $(VENV)/installed-test  ## Run the quick tests of reports, frames and store with the lowest versions of all that is needed
	$(BIN)/python -m tests.support.dist

constraints:  ## Write constraints.txt and constraints-lowest.txt, the tested versions, anew
	@$(MAKE) --no-print-directory dist DIST_OPTIONS=--constraints

bench: $(VENV)/installed-test  ## Measure speed and memory against nsys (minutes; needs nsys)
	$(BIN)/python benchmarks/analyze.py

clean:  ## Remove what the other goals made
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Installs packages into an environment: says which, how long it took, and what the environment takes.
define install
@echo "Installing into $(1): $(2)"
@begin=$$(date +%s) && $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2) && \
	echo "Installed in $$(($$(date +%s) - begin)) s; $(1) takes $$(du -sh $(1) | cut -f1)"
endef

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# docs/trends.md runs it; in an environment of its own, since it pins numpy 2.2.
$(VENV)/otava/installed: $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/otava
	$(call install,$(VENV)/otava,apache-otava==0.8.0)
	@touch $@

# docs/trackers.md runs them; in an environment of their own, which has the first one's packages too.
$(VENV)/trackers/installed: $(VENV)/installed-test
	$(PYTHON) -m venv $(VENV)/trackers
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(VENV)/trackers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth"
	$(call install,$(VENV)/trackers,'.[trackers]')
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed-test
	$(call install,$(VENV),--editable '.[docs]')
	@touch $@

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(call install,$(VENV),--editable .)
	@touch $@

$(VENV)/installed-small: $(VENV)/bin/python pyproject.toml
	$(call install,$(VENV),--editable . $(SMALL_NEEDS))
	@touch $@

$(VENV)/installed-test: $(VENV)/bin/python pyproject.toml
	$(call install,$(VENV),--editable '.[test$(comma)dashboard]')
	@touch $@ $(VENV)/installed
