# make demo   the shop on http://localhost:8000 (PORT, DATABASE_URL, OPENAI_*, AGORA_DISPATCHER are honoured)
# make tour   the same shop in the terminal: park, kill -9, approve, resume
# make test   the test suite, on SQLite or on DATABASE_URL
# make lint   formatter, linter, types, import contracts
# make clean  everything that these made

.DEFAULT_GOAL := help
.PHONY: help demo tour test lint clean
.DELETE_ON_ERROR:

VENV ?= .venv
PY := $(VENV)/bin/python

# The first interpreter that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

# The database driver and the dispatcher that the environment asks for.
EXTRA_DB := $(if $(filter postgres% psql%,$(DATABASE_URL)),postgres)$(if $(filter mysql%,$(DATABASE_URL)),mysql)
EXTRA_Q := $(if $(filter django_q,$(AGORA_DISPATCHER)),q2)
EXTRA_REDIS := $(if $(REDIS_URL),redis)
empty :=
space := $(empty) $(empty)
joined = $(subst $(space),-,$(strip $(1) $(EXTRA_DB) $(EXTRA_Q) $(EXTRA_REDIS)))
DEMO_STAMP := $(VENV)/.installed-$(call joined,demo)
TEST_STAMP := $(VENV)/.installed-$(call joined,dev)

export PORT DATABASE_URL REDIS_URL OPENAI_BASE_URL OPENAI_API_KEY OPENAI_MODEL AGORA_DISPATCHER

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(DEMO_STAMP)
	@exec $(PY) example_project/demo.py --with-parent

tour: $(DEMO_STAMP)
	@exec $(PY) example_project/tour.py

# PYTEST_ARGS="tests/durable -k kill" runs a part of it.
test: $(TEST_STAMP)
	@exec $(PY) -m pytest $(PYTEST_ARGS)

lint: $(TEST_STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

clean:
	rm -rf $(VENV) .demo .nox .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist *.egg-info

$(PY):
	@if [ -z "$(PYTHON)" ]; then \
		echo "agora-agent needs Python 3.11 or newer, and none was found. Install it, or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "agora-agent needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) -V) …" >&2
	@$(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); echo "Python's venv module is missing: on Debian and Ubuntu, apt-get install python3-venv." >&2; exit 1; }

$(VENV)/.installed-%: pyproject.toml | $(PY)
	@echo "Installing agora-agent[$(subst -,$(comma),$*)] …" >&2
	@$(PY) -m pip install -qq --disable-pip-version-check --no-input -e '.[$(subst -,$(comma),$*)]'
	@touch $@

comma := ,
