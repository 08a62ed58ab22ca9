# Every command sets itself up from a fresh clone, in .venv, and starts at once the next time.
#
#   .venv/bin/python --> .installed --> .compiled (the kernels)      what `make run` needs
#                              \------> .tools                       what `make test` and `make check` add, with the
#                               |                                     frameworks of docs/trainers.md
#                               \-----> .peers                       what `make bench` adds
#
# The names with a dot are stamp files in .venv: empty, and as old as the step they stand for.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# torch comes first, pinned: left to the other packages' resolution it may become another build, which brings
# gigabytes of CUDA libraries. Choose yours by `make TORCH=...`.
TORCH  ?= torch==2.13.0
EXTRAS := torch,hf,image,audio,guards,cli,examples

# Wheels that a machine offers to pip are offered to uv too.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

UV := $(shell command -v uv 2>/dev/null)
ifdef UV
CREATE_VENV := $(UV) venv --quiet --clear --seed --python $(PYTHON) $(VENV)
INSTALL     := $(UV) pip install --quiet --python $(BIN)/python
else
CREATE_VENV := $(PYTHON) -m venv --clear $(VENV)
INSTALL     := $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

KERNELS := src/poolish/kernels
NATIVE  := $(wildcard $(KERNELS)/*.pyx $(KERNELS)/*.pxi $(KERNELS)/*.h)

# Two processes, because the machines that check every change have two cores. `make test PYTEST="..."` for more.
PYTEST ?= -n 2 --dist worksteal -q

.DEFAULT_GOAL := help
.PHONY: help environment develop rebuild run tour test check bench soak mutants clean
.DELETE_ON_ERROR:

help:  ## what can be typed here
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environment: $(VENV)/.compiled  ## the environment, ready to be used

develop: environment $(VENV)/.tools  ## the same with test tools, linters and types (`source install.sh` also activates it)

rebuild: clean  ## remove the environment and set it up anew, after a change of dependencies (so does `bash install.sh`)
	@$(MAKE) --no-print-directory develop

run: environment  ## a provider and a trainer for a minute; the trainer is killed in the middle, resumes, and nothing is lost
	@$(BIN)/python examples/char_diffusion/run.py

tour: environment  ## rows that change while they are trained on, streams that are recorded meanwhile, replay
	@$(BIN)/python examples/tour.py
	@$(BIN)/python examples/stream.py
	@$(BIN)/python examples/growing_epoch.py
	@$(BIN)/python examples/dqn.py --smoke
	@$(BIN)/python examples/offline.py
	@$(BIN)/python examples/actors.py

check: $(VENV)/.tools  ## lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

quick: environment check  ## check and the fast tests, in less than 90 seconds
	POOLISH_QUICK=1 $(BIN)/pytest $(PYTEST) -m "not slow" tests

ROOM ?= $(error name a package: make room ROOM=rows)
room: environment $(VENV)/.tools  ## one package: its tests, the examples in its docstrings, its page; make room ROOM=rows
	$(BIN)/pytest $(PYTEST) $(wildcard tests/$(ROOM) tests/test_$(ROOM).py src/poolish/$(ROOM) src/poolish/$(ROOM).py) \
		$(if $(wildcard docs/$(ROOM).md),"tests/test_documents.py::test_programs_in_documents_run[docs/$(ROOM).md]")

graph: environment $(VENV)/.tools  ## draw the import graph and the code paths in ARCHITECTURE.md anew
	$(BIN)/python -m tests.architecture

# tests/kernels compares the compiled kernels with their NumPy reference. What uses the kernels (the marker `kernels`)
# runs a second time on the reference, with a tenth of the examples. Where nothing was compiled it has done so already.
test: environment check  ## everything that must hold: check, tests, examples in docstrings and documents
	$(BIN)/pytest $(PYTEST)
	@if $(BIN)/python -c "import poolish.kernels._native" 2>/dev/null; \
	then echo "again, on the reference kernels:"; POOLISH_PURE=1 POOLISH_QUICK=1 $(BIN)/pytest $(PYTEST) -m kernels \
		tests/test_seeds.py src/poolish/seeds.py $$(grep -rl --include="test_*.py" "mark.kernels" tests); \
	else echo "the kernels are not compiled here: all of the above ran on the reference"; fi

soak: environment $(VENV)/.tools  ## the same tests for much longer: more examples, more kills; SOAK=60 ends it after 60 minutes
	POOLISH_SOAK=1 POOLISH_SOAK_MINUTES=$(SOAK) $(BIN)/pytest $(PYTEST)

mutants: environment $(VENV)/.tools  ## remove each guard of the file formats in a copy and see its test fail; ONLY="S4 Q2" for some
	$(BIN)/python -m tests.mutants $(ONLY)

bench: environment $(VENV)/.peers  ## poolish against its peers; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.run

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	rm -f $(KERNELS)/*.c $(KERNELS)/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "poolish needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "setting up $(VENV) with $(if $(UV),uv,pip) (a few minutes, once)"
	@$(CREATE_VENV)

# No build isolation: an isolated build would download its own setuptools and Cython each time.
# CC=false: the kernels are compiled by the rule below, so this install need not compile them too.
$(VENV)/.installed: pyproject.toml setup.py | $(BIN)/python
	@$(INSTALL) "$(TORCH)" numpy "setuptools>=77" "Cython>=3.0"
	@CC=false $(INSTALL) --no-build-isolation -e ".[$(EXTRAS)]"
	@touch $@

# What was built before goes first, the copy in build/ too: if the new source does not compile, yesterday's kernels
# must not answer for it.
$(VENV)/.compiled: $(NATIVE) setup.py $(VENV)/.compiler | $(VENV)/.installed
	@rm -rf build $(KERNELS)/*.so
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BIN)/python -c 'from poolish.versions import installed_versions as v; print("kernels:", v()["kernels"])'
	@touch $@

# Another compiler is another build. The file changes only when the answer does.
$(VENV)/.compiler: FORCE | $(VENV)/.installed
	@echo '$(CC)' | cmp -s - $@ || echo '$(CC)' > $@
FORCE:

$(VENV)/.tools: pyproject.toml $(VENV)/.installed
	@CC=false $(INSTALL) --no-build-isolation -e ".[$(EXTRAS),trainers,experience,dev]"
	@touch $@

# One at a time and with torch held still: a peer that cannot be had is missing from the results, not in the way.
$(VENV)/.peers: benchmarks/peers.txt $(VENV)/.installed
	@sed 's/#.*//' $< | while read -r peer; do \
		test -z "$$peer" || $(INSTALL) "$(TORCH)" "$$peer" </dev/null || echo "peer not installed: $$peer"; done
	@touch $@
