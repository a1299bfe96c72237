# Two commands set up everything they need and can be repeated at will:
#   make demo   a real network compiled, booted on an emulated microcontroller, answering over its serial line
#   make test   the whole test suite
# One runs the tests that need the corpus of real models (MICROC_CORPUS, or ../shared/corpus), which the suite skips without it:
#   make corpus
# One builds a release into dist/ and checks it in an empty environment:
#   make wheel
# And two that find what the tests do not know yet:
#   make campaign   the tests again, with every pair of the tables that `make test` takes in turn
#   make fuzz   mutated models through the whole compiler, their C under sanitizers, frames against the runtime and its slots;
#               findings go to build/fuzz (MINUTES=60 for an hour, SEED=7 for other mutants, WHAT="tflite onnx keras mcg frames
#               slots client readers"; slots take two of seven minutes)
VENV ?= .venv
PYTHON := $(VENV)/bin/python

MINUTES ?= 7
SEED ?= 1
WHAT ?= tflite onnx keras mcg frames slots client readers

.PHONY: demo test types suite check corpus campaign fuzz bench digest digest-compare docs site wheel clean

demo: $(VENV)/.demo
	@$(PYTHON) -m microc demo

test: $(VENV)/.test
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(MAKE) --no-print-directory -j 2 types suite

# two targets of `test`, side by side: mypy takes one core for a minute, the tests leave some of both
types: $(VENV)/.test
	@$(VENV)/bin/mypy

# (without the flags of this make, which the makes that tests start would warn of)
suite: $(VENV)/.test
	@env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL $(PYTHON) -m pytest -n 2 --dist worksteal

# the tests nearest to what is not committed, or differs from BASE: a few minutes
check: $(VENV)/.test
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(PYTHON) -m tests.affected $(BASE)

# (only files that name the corpus can have tests that need it; tests/conftest.py holds them to that)
corpus: $(VENV)/.test
	@$(PYTHON) -m pytest -m corpus -n 2 --dist worksteal $$(grep -rl --include='test_*.py' corpus tests)

campaign: $(VENV)/.test
	@MICROC_TESTS=all $(PYTHON) -m pytest -n 2 --dist worksteal

fuzz: $(VENV)/.test
	@$(PYTHON) -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) --what $(WHAT)

bench: $(VENV)/.test
	@$(PYTHON) benchmarks/mlperf_tiny.py

# proof that a refactoring changes no generated code: digests before, and a comparison after
digest: $(VENV)/.test
	@mkdir -p build
	@$(PYTHON) -m tests.digest record build/digest.json --texts build/digest $(QUICK)

digest-compare: $(VENV)/.test
	@$(PYTHON) -m tests.digest record build/digest-now.json --texts build/digest-now $(QUICK)
	@$(PYTHON) -m tests.digest compare build/digest.json build/digest-now.json --texts build/digest build/digest-now

# pages of docs/ that are written from the code
docs: $(VENV)/.test
	@$(PYTHON) -m scripts.site
	@$(PYTHON) -m microc operators --markdown > docs/operators.md
	@$(PYTHON) -m microc options --markdown > docs/options.md
	@$(PYTHON) -c "from microc.codegen.c.misra import render_misra_page; print(render_misra_page(), end='')" > docs/misra.md
	@$(PYTHON) -m tests.json_schemas
	@$(PYTHON) -m tests.compiler.test_typed

wheel: $(VENV)/.test
	@$(PYTHON) -m scripts.release

# the documentation as HTML in build/site
site: $(VENV)/.test
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict -q && echo build/site/index.html

$(VENV)/.demo: pyproject.toml scripts/setup.sh
	@scripts/setup.sh "$(VENV)" .
	@touch $@

$(VENV)/.test: pyproject.toml scripts/setup.sh
	@scripts/setup.sh "$(VENV)" '.[test]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
