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
import shlex
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.bundles import ready_models, serving
from deploy.bundles.model_files import digest
from deploy.bundles.model_kinds import IN_PYTHON, Given, recognise
from deploy.cli import until_live
from deploy.laptop.relay import run_ours
from deploy.tools import http_client
from deploy.tools.clearml_serving import ClearMLServing, model_add
from deploy.tools.errors import DeployError, GatewayError
from deploy.tools.terminal import Terminal
from gateway import manifest, registry, spec

_SERVED_WITHIN_S: Final = 180.0
_ANSWERS_WITHIN_S: Final = 60.0
_ASK_AGAIN_S: Final = 0.3
_REFUSED: Final = (400, 401, 403, 413, 415, 422)
"""Statuses for which repeating the request is useless."""
_SHOWN: Final = 4
"""Numbers of a long list that are shown."""
_UNFIT: Final = re.compile(r"[\s\x00-\x1f\x7f?#%\\]+")
"""Characters that an endpoint's name must not contain: in an address they must be escaped, or end the path."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of one deployment."""

    given: Given
    endpoint: str
    """Name of the endpoint. If ``version`` is empty, it gets the next free number."""
    version: str
    output: Path
    """Folder of the bundles."""
    gateway: str
    project: str
    name: str
    trusts_code: bool = False


class Deployment:
    """One run. ``store``: the registry; ``environ``: environment of the stock CLI; ``tell`` prints the results."""

    def __init__(
        self, wanted: Wanted, store: registry.ClearMLRegistry, screen: Terminal, tell: Callable[[str], None],
        environ: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._wanted = wanted
        self._store = store
        self._screen = screen
        self._tell = tell
        self._environ = {**environ, "PYTHONUNBUFFERED": "1"}
        self._task_id = store.followed()
        self._cli = ClearMLServing(env=self._environ, log=wanted.output / "clearml-serving.log", timeout=900.0)

    def run(self) -> str:
        """Deploy the model, and return its url. Raises ``DeployError`` and the registry's errors."""
        try:
            self._wanted.output.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(dir=self._wanted.output, prefix=".tmp-", ignore_cleanup_errors=True)
        except OSError as error:
            why = f"the folder for bundles {self._wanted.output} cannot be written ({error.strerror})"
            raise DeployError(why, hint="run the command in a folder that you may write") from error
        with scratch as folder:
            # the SDK packs a model into a temporary file before it uploads it, and /tmp may be small
            self._environ.setdefault("TMPDIR", folder)
            return self._run(Path(folder))

    def _run(self, scratch: Path) -> str:
        wanted, screen = self._wanted, self._screen
        self._live("reading the serving Task")
        serving_spec = self._store.spec()
        if other := until_live.another_task(until_live.status_of(wanted.gateway), serving_spec.task_id):
            raise DeployError(
                f"the gateway {wanted.gateway} {other}: it would never serve this model",
                hint="name the gateway of this Task with --url, or an `up` and its gateway with --state-dir",
            )
        tag = self._tag()
        there = self._served_already(serving_spec, tag)
        if there:
            screen.say(f"{there} already serves exactly these files")
            if refused := self._ask(there):
                raise DeployError(refused)
            return there
        version = next_version(serving_spec, wanted.endpoint, wanted.version)
        url = spec.normalize_url(wanted.endpoint, version)
        arguments = self._made(tag, scratch)
        at = arguments.index("--endpoint") + 1
        arguments[at : at + 1] = [wanted.endpoint, "--version", version]
        self._live(f"clearml-serving model add --endpoint {url}")
        remove = ["--id", self._task_id, "model", "remove", "--endpoint", url]
        try:
            asyncio.run(self._cli.run("--id", self._task_id, *arguments))
            self._typed(arguments)
            refused = self._ask(url)
        except KeyboardInterrupt:
            screen.say(f"if {url} was added, it stays; to remove it: {serving.command_line(remove)}")
            raise
        if refused:
            # otherwise a version that cannot be served would become the default version
            asyncio.run(self._cli.run(*remove))
            raise DeployError(refused, hint="the endpoint is removed again; the registered model stays")
        default = self._store.spec().defaults.get(wanted.endpoint)
        if default not in (None, url):
            name, _, number = url.rpartition("/")
            self._tell(
                f"/serve/{name} answers as before ({default}). To let this version answer, run `triton-gateway default "
                f"{name} {number}` or `triton-gateway canary run --endpoint {name} --to {number}`"
            )
        return url

    # --- making and uploading -----------------------------------------------------------------------------------

    def _made(self, tag: str, scratch: Path) -> list[str]:
        """Register the model. Return the arguments of ``clearml-serving model add``, with ENDPOINT."""
        wanted, given = self._wanted, self._wanted.given
        if given.kind == "transformers":
            # a separate process: torch's memory is freed with it
            self._screen.say("starting the export")
            output = asyncio.run(run_ours(self._optimize(), self._environ, reads=True))
            given = recognise(json.loads(output[output.index("{") :])["bundle"])
            self._screen.say("only exact ONNX Runtime (ort-fp32) was tried; `optimize` makes a bundle of the fastest")
        framework = IN_PYTHON.get(given.kind, "onnx")
        upload = ["model", "upload", "--name", wanted.name, "--project", wanted.project, "--tags", tag,
                  "--framework", framework, "--publish", "--path"]  # fmt: skip
        if given.kind == "bundle" and given.path is not None:
            values = json.loads((given.path / manifest.FILE).read_text(encoding="utf-8"))
            folder, pairs = given.path, values["chosen"].get("aux_config", ())
            trained = self._trained_by(str(values["source"]["given"]))
        else:
            folder, trained = ready_models.pack(given, wanted.output, wanted.name), ""
            pairs = [f"gateway.task={given.task}"] if given.task != "auto" else []
        inputs, outputs = ((), ()) if given.kind in IN_PYTHON else ready_models.declared(folder / "model.onnx")
        os.environ.setdefault("TQDM_DISABLE", "1")  # the SDK's own progress would be on the same line
        logging.getLogger("clearml.storage").setLevel("WARNING")
        self._screen.live("uploading to ClearML", topic="upload")
        known, comment = self._tagged(tag), "registered by `triton-gateway deploy`"
        model_id = self._store.register(
            registry.Upload(folder, wanted.project, wanted.name, framework, (tag,), comment, trained, scratch)
        )
        if model_id in known:
            self._screen.say(f"model {model_id} has exactly these files: it is used again")
        self._typed([*upload, str(folder)])
        if given.kind in IN_PYTHON:
            return ["model", "add", "--engine", given.kind, "--endpoint", "ENDPOINT", "--model-id", model_id]
        return model_add("ENDPOINT", model_id, inputs, outputs, pairs)

    def _optimize(self) -> list[str]:
        wanted, given = self._wanted, self._wanted.given
        options = ["optimize", str(given.path or given.given), "--output", str(wanted.output), "--name", wanted.name]
        options += ["--candidate", "ort-fp32", "--quick", "--json"]
        options += ["--task", given.task] if given.task != "auto" else []
        return [*options, *(["--trust-remote-code"] if wanted.trusts_code else [])]

    # --- the registry -------------------------------------------------------------------------------------------

    def _tag(self) -> str:
        given = self._wanted.given
        return f"source-{digest(given.path)[:16]}" if given.path is not None else f"source-{given.given}"

    def _trained_by(self, source: str) -> str:
        """Return the Task that trained the registered model of which a bundle was made, so that lineage leads to it."""
        with contextlib.suppress(GatewayError):  # the model is away
            return self._store.model(source).task if registry.is_id(source) else ""
        return ""

    def _tagged(self, tag: str) -> set[str]:
        """Return the ids of all models that were made of these files."""
        asked = {"tags": [tag], "only_fields": ["id"]}
        return {str(model["id"]) for model in self._store.call("models", "get_all", asked)["models"]}

    def _served_already(self, serving_spec: spec.ServingSpec, tag: str) -> str:
        """Return the url of the endpoint that was made of exactly these files; empty if there is none."""
        if self._wanted.given.path is None:
            return ""  # the model behind a hub name can change
        known = self._tagged(tag)
        of_it = _versions(serving_spec, self._wanted.endpoint)
        found = [url for url in of_it if serving_spec.endpoints[url].model_id in known]
        wanted = spec.normalize_url(self._wanted.endpoint, self._wanted.version)
        return next((url for url in found if not self._wanted.version or url == wanted), "")

    # --- words --------------------------------------------------------------------------------------------------

    def _live(self, text: str) -> None:
        self._screen.live(text, topic=text)

    def _typed(self, arguments: Sequence[str]) -> None:
        self._screen.show(f"$ {serving.command_line(['--id', self._task_id, *arguments])}")

    def _ask(self, url: str) -> str:
        """Wait until the endpoint is served, and print a request that can be copied, with its answer.

        Return why it is refused for good; empty if it is served. Raises ``DeployError`` if it is not served in time.
        """
        wanted, live = self._wanted, self._screen.live
        found = until_live.follow(
            [wanted.gateway], _SERVED_WITHIN_S, self._store, lambda why: live(f"waiting for {url}: {why}"), url
        )
        if found.reason:
            why = f"{url} cannot be served: {found.reason}"
            if found.outlook == "final":
                return why
            raise DeployError(why, hint="see the logs of model sync, Triton and the gateway")
        details = next(one for one in found.status["endpoints"] if one["url"] == url).get("details", {})
        self._screen.say(f"{url} is served ({details.get('task', details.get('engine', 'model'))})")
        if details.get("example") is None:
            rows, note = "…", "the body depends on the model: docs/http-api.md"
            if wanted.given.kind in IN_PYTHON:
                rows, note = "[…]", "a list of rows: each a list of the model's numbers, or a text"
            self._tell(f"  {curl(wanted.gateway, url, rows)}  # {note}")
            return ""
        body = details["example"]
        if isinstance(body, dict) and isinstance(body.get("text"), list):
            body = {**body, "text": body["text"][0]}
        answer = first_answer(wanted.gateway, url, body, live)
        self._tell(f"$ {curl(wanted.gateway, url, json.dumps(body, ensure_ascii=False))}")
        self._tell(json.dumps(shortened(answer.content), ensure_ascii=False))
        return ""


def first_answer(gateway: str, url: str, body: object, live: Callable[[str], None]) -> http_client.Answer:
    """Ask an endpoint until it answers: another worker may not serve it yet.

    Raises ``DeployError`` if it refuses the request, or does not answer in time.
    """
    until = time.monotonic() + _ANSWERS_WITHIN_S
    while True:
        found = http_client.call_gateway(f"{gateway}/serve/{urllib.parse.quote(url)}", body=body, timeout=30)
        if found is not None and found.status == 200:
            return found
        content = found.content if found is not None and isinstance(found.content, dict) else {}
        reason, hint = str(content.get("error", "it does not answer")), str(content.get("hint", ""))
        if (found is not None and found.status in _REFUSED) or time.monotonic() > until:
            if found is not None and found.status in (401, 403):
                hint = "set TRITON_GATEWAY_KEY to a key that allows the operation infer"
            why = f"{url} is served, but it does not answer its example request: {reason}"
            raise DeployError(why, hint=hint or "see the logs of the gateway, model sync and Triton")
        live(f"waiting for {url}: {reason}")
        time.sleep(_ASK_AGAIN_S)


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


def curl(gateway: str, name: str, body: str) -> str:
    """Return a request that can be copied into a shell. If a key is needed, it comes from the environment."""
    key = ' -H "authorization: Bearer $TRITON_GATEWAY_KEY"' if os.environ.get("TRITON_GATEWAY_KEY") else ""
    address = f"{gateway}/serve/{urllib.parse.quote(name)}"
    return f"curl -s {address} -H 'content-type: application/json'{key} -d {shlex.quote(body)}"


def shortened(answer: object) -> object:
    """Return an answer with long lists of numbers cut short."""
    if isinstance(answer, dict):
        return {key: shortened(value) for key, value in answer.items()}
    if isinstance(answer, list):
        if len(answer) > 2 * _SHOWN and all(isinstance(one, int | float) for one in answer):
            return [*(round(one, 4) for one in answer[:_SHOWN]), f"… {len(answer)} numbers"]
        return [shortened(one) for one in answer]
    return answer


def _versions(serving_spec: spec.ServingSpec, endpoint: str) -> dict[str, spec.EndpointSpec]:
    return {url: one for url, one in serving_spec.endpoints.items() if one.endpoint == endpoint}
