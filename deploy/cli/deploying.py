"""The work of ``deploy``: turns a model's folder into an endpoint that answers (bundle, upload, add, wait, ask).

Endpoints are added by the stock ``clearml-serving``. Models are registered by the registry, under names that say what
their files are, so that no upload replaces another; an export is made by ``optimize``, in a separate process.
Every step is printed as the command line that a person could type. Steps that can fail come before anything is
registered, and the endpoint is added last. If Triton or the gateway refuses it for good, it is removed again. A
registered model stays: it changes nothing by itself, and the next run with the same files uses it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.bundles import ready_models, serving
from deploy.bundles.model_files import digest
from deploy.bundles.model_kinds import IN_PYTHON, Given, recognise
from deploy.cli import first_request, until_live
from deploy.laptop.relay import run_ours
from deploy.tools.clearml_serving import ClearMLServing, model_add
from deploy.tools.errors import DeployError, GatewayError
from deploy.tools.terminal import Terminal
from gateway import manifest, registry, spec

_SERVED_WITHIN_S: Final = 180.0
_UNFIT: Final = re.compile(r"[\s\x00-\x1f\x7f?#%\\]+")
"""Characters that an endpoint's name must not contain: in an address they must be escaped, or end the path."""


@dataclass(kw_only=True, slots=True)
class Deployment:
    """One run: the options of the command, and what it works with."""

    given: Given
    endpoint: str
    """Name of the endpoint."""
    version: str
    """Empty: the next free number."""
    output: Path
    """Folder of the bundles."""
    gateway: str
    project: str
    name: str
    trusts_code: bool = False
    store: registry.ClearMLRegistry
    screen: Terminal
    tell: Callable[[str], None]
    """Prints the results."""
    environ: dict[str, str]
    """Environment of the stock CLI and of the export."""
    _task_id: str = field(init=False, default="")

    def run(self) -> str:
        """Deploy the model, and return its url. Raises ``DeployError``, ``OSError`` and the registry's errors."""
        self.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.output, prefix=".tmp-", ignore_cleanup_errors=True) as folder:
            # the SDK packs a model into a temporary file before it uploads it, and /tmp may be small
            self.environ = {**self.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": self.environ.get("TMPDIR", folder)}
            return self._run(Path(folder))

    def _run(self, scratch: Path) -> str:
        self._live("reading the serving Task")
        serving_spec = self.store.spec()
        self._task_id = serving_spec.task_id
        if other := until_live.another_task(until_live.status_of(self.gateway), serving_spec.task_id):
            raise DeployError(
                f"the gateway {self.gateway} {other}: it would never serve this model",
                hint="name the gateway of this Task with --url, or an `up` and its gateway with --state-dir",
            )
        tag = self._tag()
        there = self._served_already(serving_spec, tag)
        if there:
            self.screen.say(f"{there} already serves exactly these files")
            if refused := self._ask(there):
                raise DeployError(refused)
            return there
        version = next_version(serving_spec, self.endpoint, self.version)
        url = spec.normalize_url(self.endpoint, version)
        arguments = self._made(tag, scratch, version)
        cli = ClearMLServing(env=self.environ, log=self.output / "clearml-serving.log", timeout=900.0)
        self._live(f"clearml-serving model add --endpoint {url}")
        remove = ["--id", self._task_id, "model", "remove", "--endpoint", url]
        try:
            asyncio.run(cli.run("--id", self._task_id, *arguments))
            self._typed(arguments)
            refused = self._ask(url)
        except KeyboardInterrupt:
            self.screen.say(f"if {url} was added, it stays; to remove it: {serving.command_line(remove)}")
            raise
        if refused:
            # otherwise a version that cannot be served would become the default version
            asyncio.run(cli.run(*remove))
            raise DeployError(refused, hint="the endpoint is removed again; the registered model stays")
        default = self.store.spec().defaults.get(self.endpoint)
        if default not in (None, url):
            name, _, number = url.rpartition("/")
            self.tell(
                f"/serve/{name} answers as before ({default}). To let this version answer, run `triton-gateway default "
                f"{name} {number}` or `triton-gateway canary run --endpoint {name} --to {number}`"
            )
        return url

    # --- making and uploading -----------------------------------------------------------------------------------

    def _made(self, tag: str, scratch: Path, version: str) -> list[str]:
        """Register the model. Return the arguments of ``clearml-serving model add``."""
        given = self.given
        if given.kind == "transformers":
            # a separate process: torch's memory is freed with it
            self.screen.say("starting the export")
            output = asyncio.run(run_ours(self._optimize(), self.environ, reads=True))
            given = recognise(json.loads(output[output.index("{") :])["bundle"])
            self.screen.say("only exact ONNX Runtime (ort-fp32) was tried; `optimize` makes a bundle of the fastest")
        framework = IN_PYTHON.get(given.kind, "onnx")
        upload = ["model", "upload", "--name", self.name, "--project", self.project, "--tags", tag,
                  "--framework", framework, "--publish", "--path"]  # fmt: skip
        if given.kind == "bundle" and given.path is not None:
            values = json.loads((given.path / manifest.FILE).read_text(encoding="utf-8"))
            folder, pairs = given.path, values["chosen"].get("aux_config", ())
            trained = self._trained_by(str(values["source"]["given"]))
        else:
            folder, trained = ready_models.pack(given, self.output, self.name), ""
            pairs = [f"gateway.task={given.task}"] if given.task != "auto" else []
        inputs, outputs = ((), ()) if given.kind in IN_PYTHON else ready_models.declared(folder / "model.onnx")
        os.environ.setdefault("TQDM_DISABLE", "1")  # the SDK's own progress would be on the same line
        logging.getLogger("clearml.storage").setLevel("WARNING")
        self.screen.live("uploading to ClearML", topic="upload")
        known, comment = self._tagged(tag), "registered by `triton-gateway deploy`"
        model_id = self.store.register(
            registry.Upload(folder, self.project, self.name, framework, (tag,), comment, trained, scratch)
        )
        if model_id in known:
            self.screen.say(f"model {model_id} has exactly these files: it is used again")
        self._typed([*upload, str(folder)])
        if given.kind in IN_PYTHON:
            return ["model", "add", "--engine", given.kind, "--endpoint", self.endpoint, "--version", version,
                    "--model-id", model_id]  # fmt: skip
        return model_add(f"{self.endpoint}/{version}", model_id, inputs, outputs, pairs)

    def _optimize(self) -> list[str]:
        given = self.given
        options = ["optimize", str(given.path or given.given), "--output", str(self.output), "--name", self.name]
        options += ["--candidate", "ort-fp32", "--quick", "--json"]
        options += ["--task", given.task] if given.task != "auto" else []
        return [*options, *(["--trust-remote-code"] if self.trusts_code else [])]

    # --- the registry -------------------------------------------------------------------------------------------

    def _tag(self) -> str:
        given = self.given
        return f"source-{digest(given.path)[:16]}" if given.path is not None else f"source-{given.given}"

    def _trained_by(self, source: str) -> str:
        """Return the Task that trained the registered model of which a bundle was made, so that lineage leads to it."""
        with contextlib.suppress(GatewayError):  # the model is away
            return self.store.model(source).task if registry.is_id(source) else ""
        return ""

    def _tagged(self, tag: str) -> set[str]:
        """Return the ids of all models that were made of these files."""
        asked = {"tags": [tag], "only_fields": ["id"]}
        return {str(model["id"]) for model in self.store.call("models", "get_all", asked)["models"]}

    def _served_already(self, serving_spec: spec.ServingSpec, tag: str) -> str:
        """Return the url of the endpoint that was made of exactly these files; empty if there is none."""
        if self.given.path is None:
            return ""  # the model behind a hub name can change
        known = self._tagged(tag)
        of_it = _versions(serving_spec, self.endpoint)
        found = [url for url in of_it if serving_spec.endpoints[url].model_id in known]
        wanted = spec.normalize_url(self.endpoint, self.version)
        return next((url for url in found if not self.version or url == wanted), "")

    # --- words --------------------------------------------------------------------------------------------------

    def _live(self, text: str) -> None:
        self.screen.live(text, topic=text)

    def _typed(self, arguments: Sequence[str]) -> None:
        self.screen.show(f"$ {serving.command_line(['--id', self._task_id, *arguments])}")

    def _ask(self, url: str) -> str:
        """Wait until the endpoint is served, and print a request that can be copied, with its answer.

        Return why it is refused for good; empty if it is served. Raises ``DeployError`` if it is not served in time.
        """
        live = self.screen.live
        found = until_live.follow(
            [self.gateway], _SERVED_WITHIN_S, self.store, lambda why: live(f"waiting for {url}: {why}"), url
        )
        if found.reason:
            why = f"{url} cannot be served: {found.reason}"
            if found.outlook == "final":
                return why
            raise DeployError(why, hint="see the logs of model sync, Triton and the gateway")
        details = next(one for one in found.status["endpoints"] if one["url"] == url).get("details", {})
        self.screen.say(f"{url} is served ({details.get('task', details.get('engine', 'model'))})")
        first_request.show(self.gateway, url, details.get("example"), live, self.tell)
        return ""


def name_and_version(endpoint: str) -> tuple[str, str]:
    """Split ``NAME[/VERSION]``. Raises ``DeployError`` for a name that cannot be part of an address."""
    name, _, version = endpoint.strip("/").partition("/")
    if _UNFIT.search(endpoint) or {name, version} & {".", ".."} or "-" in (name[:1], version[:1]) or "/" in version:
        raise DeployError(
            f"--endpoint {endpoint!r}: a name is part of an address, so it must not contain spaces, ?, #, % or "
            "backslashes, nor start with a hyphen, nor be . or ..",
            hint="write NAME or NAME/VERSION, for instance faq/2",
        )
    return name, version


def next_version(serving_spec: spec.ServingSpec, endpoint: str, version: str) -> str:
    """Return the version to add: the given one, otherwise one above the highest. Raises ``DeployError``."""
    of_it = _versions(serving_spec, endpoint)
    url = spec.normalize_url(endpoint, version)
    if version and url in of_it:
        raise DeployError(
            f"{url} exists already, with model {of_it[url].model_id or '(code)'}",
            hint=f"leave the version out to get the next one, or run `clearml-serving model remove --endpoint {url}` "
            "first",
        )
    numbers = [int(one.version) for one in of_it.values() if one.version.isdecimal()]
    return version or str(max(numbers, default=0) + 1)


def _versions(serving_spec: spec.ServingSpec, endpoint: str) -> dict[str, spec.EndpointSpec]:
    return {url: one for url, one in serving_spec.endpoints.items() if one.endpoint == endpoint}
