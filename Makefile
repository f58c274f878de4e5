# Each target installs first if needed. A newcomer needs `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# Installs exactly the files of a list, by their hashes, without their requirements (`make lock`).
LOCKED := $(PIP) --require-hashes --no-deps -r requirements
SOURCES := pyproject.toml setup.py $(wildcard requirements/*.txt kernels/cpu/csrc/*/*)

# The suite starts hundreds of processes: each would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-all wheel check-wheel sdist release-check lock docs versions arm64 fuzz sanitize journeys lint bench bench-scale reproduce gpu clean

install: $(VENV)/.complete

# The package alone, for the demo.
$(VENV)/.package: $(SOURCES)
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(LOCKED)/package.txt
	$(PIP) -r requirements/torch.txt
	@echo "compiling the kernels, which takes minutes"
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The package and the extras for tests, benchmarks and documentation.
$(VENV)/.complete: $(VENV)/.package
	$(LOCKED)/develop.txt
	@touch $@

demo: $(VENV)/.package
	$(PY) benchmarks/eval_mem.py

test: $(VENV)/.complete
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow"

# All tests, with long and rare ones, and 120 examples of each property.
test-all: $(VENV)/.complete
	EXAMPLES=$(or $(EXAMPLES),120) $(PY) -m pytest -n 2 --dist worksteal

# The wheel to publish, into dist/; wheels of other platforms: .github/workflows/wheels.yml.
wheel: $(VENV)/.complete
	@rm -rf build/lib* build/bdist* # files of earlier versions
	KGFAST_REQUIRE_EXTENSION=1 $(PY) -m build --wheel --no-isolation

# Installs the wheel in a new environment beside torch, with times; needs the network.
check-wheel: wheel
	$(PY) tools/check_wheel.py --fresh benchmarks/results/wheel.json $$(ls -t dist/kgfast-*.whl | head -1)

sdist: $(VENV)/.complete
	$(PY) -m build --sdist --no-isolation

# Every check before a release that needs no network: see tools/check_wheel.py.
release-check: $(VENV)/.complete
	$(LOCKED)/release.txt
	$(PY) tools/check_wheel.py --release

# Writes the lists in requirements/ by uv, after a change of pyproject.toml; needs the network.
# `make lock UPGRADE=1` takes newer versions, and requirements/torch.txt is changed by hand.
LOCK = printf 'pybind11>=3\nsetuptools\n' | $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 \
    --generate-hashes --no-annotate --no-header --no-emit-package torch \
    -c requirements/torch.txt pyproject.toml -

lock: $(VENV)/.package
	$(PIP) uv
	$(LOCK) $(if $(UPGRADE),--upgrade) --extra test --extra bench --extra docs \
	    -o requirements/develop.txt
	$(LOCK) -c requirements/develop.txt -o requirements/package.txt
	$(LOCK) -c requirements/develop.txt --extra serve -o requirements/serve.txt
	$(LOCK) -c requirements/develop.txt $(if $(UPGRADE),--upgrade) --extra release \
	    -o requirements/release.txt

# docs/ as a site in build/site; a link that leads nowhere is an error.
docs: $(VENV)/.complete
	$(PY) -m mkdocs build --strict

# The package with the lowest, the locked and the newest versions of its dependencies: needs the
# network, and 15 GB of disk where torch brings CUDA. One of the three: `make versions ONLY=newest`.
versions: wheel
	$(PIP) uv
	$(PY) tools/versions.py $$(ls -t dist/kgfast-*.whl | head -1) $(if $(ONLY),--only $(ONLY))

# The extension of 64-bit ARM and its suite, emulated: half an hour. Needs Debian's packages
# g++-aarch64-linux-gnu and qemu-user-static, and the network once.
arm64: $(VENV)/.complete
	$(PY) tools/arm64.py

# Property tests with more examples each: `make fuzz EXAMPLES=500`; a failure names its CASE='rank:12'.
fuzz: $(VENV)/.complete
	CASE="$(CASE)" EXAMPLES=$(or $(EXAMPLES),1000) $(PY) -m pytest -q -n 2 --timeout=3000 \
	    $(if $(CASE),tests/test_fuzz.py -k drawn,-m "hypothesis and not slow" tests)

# Property tests of the extension under sanitizers, each built into build/sanitize-*.
sanitize: $(VENV)/.complete
	$(PY) tools/sanitize.py address
	$(PY) tools/sanitize.py thread

# The walks of new users (tests/journeys), timed: ten minutes. `make journeys WALK="five reports"`.
journeys: $(VENV)/.complete
	$(PY) -m pytest -q --durations=0 tests/journeys $(if $(WALK),-k "$(WALK)")

# mypy checks the package as it is installed, where kernels/ is kgfast.kernels.
lint: $(VENV)/.complete
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) tools/check_allocations.py
	@rm -rf build/typed && $(PY) setup.py --quiet build_py --build-lib build/typed
	MYPYPATH=build/typed $(VENV)/bin/mypy -p kgfast
	$(PY) benchmarks/pages.py --check

# The tables of README and of the pages, about two hours on two cores. A call after an interruption
# goes on. DATA=DIR holds wn18rr and fb15k-237; RUNS=DIR holds runs that were trained before.
bench: $(VENV)/.complete
	$(PY) benchmarks/bench.py $(if $(DATA),--data $(DATA)) $(if $(RUNS),--runs $(RUNS)) \
	    $(if $(ONLY),--only $(ONLY)) $(if $(FRESH),--fresh)

# Tables of up to 23 GB in FOLDER: `make bench-scale FOLDER=DIR`.
bench-scale: $(VENV)/.complete
	$(PY) benchmarks/scale.py --folder $(FOLDER)
	$(PY) benchmarks/pages.py scale

# A row of docs/reference/results.md, trained again, beside ours: `make reproduce ROW=fb15k237/transe`, with
# DATA=DIR instead of a download, THREADS=8, OUT=FOLDER. Without ROW, make lists the rows.
reproduce: $(VENV)/.complete
	$(PY) benchmarks/reproduce.py $(ROW) $(if $(DATA),--data $(DATA)) \
	    $(if $(THREADS),--threads $(THREADS)) $(if $(OUT),--out $(OUT))

# For a machine with a GPU and no network: uses the python3 at hand, which needs torch, Triton and
# numpy, and installs nothing. Times: `make gpu OUT=DIR CACHE=FILE`; then `make gpu CALL=checks ...`.
gpu:
	$(PYTHON) benchmarks/gpu.py $(if $(CALL),--call $(CALL)) $(if $(OUT),--out $(OUT)) \
	    $(if $(CACHE),--cache $(CACHE)) $(if $(GRAPH),--graph $(GRAPH))

clean:
	rm -rf build dist $(VENV)
