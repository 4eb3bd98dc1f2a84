"""Fakes of the registry and of Triton, in memory.

Each is held to the real adapter by the contract tests: one suite runs over both.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from gateway.errors import (
    BackendUnavailable,
    DeadlineExceeded,
    GatewayError,
    ModelNotReady,
    RegistryRefused,
    RegistryUnavailable,
)
from gateway.file_names import file_name
from gateway.registry.clearml.upload import pack
from gateway.registry.ledger import Kind, Record, Records
from gateway.registry.port import ModelQuery, Parts, Upload
from gateway.spec import ArtifactRef, ModelRecord, ServingSpec, ServingTask, decode
from gateway.trace import TRACEPARENT
from gateway.triton.port import ModelInfo, TensorInfo, Tensors

Run = Callable[[dict[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


class FakeBackend:
    """A backend in memory: ``models`` by name, each a function from inputs to outputs.

    ``latency`` seconds per call; ``calls`` records ``(model, rows)``, ``parents`` the ``traceparent`` of each;
    ``fail_with`` makes every call raise it; ``is_up`` False makes the
    server unreachable; ``hold`` (an event) keeps calls waiting until it is set; ``replicas`` is how many servers it
    says it is.
    """

    def __init__(self, models: Mapping[str, tuple[ModelInfo, Run]] | None = None) -> None:
        self.models = dict(models or {})
        self.streams: dict[str, Callable[[dict[str, NDArray[Any]]], Iterable[Mapping[str, NDArray[Any]]]]] = {}
        """Decoupled models by name: each a function from inputs to the responses, in order."""
        self.ended: list[str] = []
        """The models of streams that were closed before their last response."""
        self.calls: list[tuple[str, int]] = []
        self.parents: list[str] = []
        self.latency = 0.0
        self.is_up = True
        self.fail_with: GatewayError | None = None
        self.hold: asyncio.Event | None = None
        self.replicas = 1
        self.waiting = 0
        self.cold = Counter[str]()
        self._readers: set[asyncio.Task[None]] = set()

    def add(self, name: str, inputs: Mapping[str, str], outputs: Mapping[str, str], run: Run) -> None:
        """Load a model: tensor names to numpy type names, first dimension = rows."""
        info = ModelInfo(
            name,
            tuple(TensorInfo(n, t, (-1, -1)) for n, t in inputs.items()),
            tuple(TensorInfo(n, t, (-1, -1)) for n, t in outputs.items()),
            max_batch_size=64,
        )
        self.models[name] = (info, run)

    def expect_cold(self, model: str) -> Callable[[], None]:
        """See ``Backend.expect_cold``."""
        self.cold[model] += 1
        return lambda: self.cold.subtract([model])

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float
    ) -> dict[str, NDArray[Any]]:
        """See ``Backend.infer``."""
        self._check(model)
        self.calls.append((model, len(next(iter(inputs.values())))))
        self.parents.append(TRACEPARENT.get())
        async with _until(timeout):
            if self.hold is not None:
                await self.hold.wait()
            if self.latency:
                await asyncio.sleep(self.latency)
        if self.fail_with is not None:
            raise self.fail_with
        self._check(model)
        answer = self.models[model][1]({name: np.asarray(array) for name, array in inputs.items()})
        return {name: array for name, array in answer.items() if not outputs or name in outputs}

    async def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float,
        ended: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[dict[str, NDArray[Any]], None]:  # fmt: skip
        """See ``Backend.stream``; ``latency`` is that of each response. With ``hold``, a stream ends when it is set."""
        until = asyncio.get_running_loop().time() + timeout
        is_whole = True
        try:
            self._check(model)
            is_whole = False
            for response in self.streams[model]({name: np.asarray(array) for name, array in inputs.items()}):
                async with _until(until - asyncio.get_running_loop().time()):
                    await asyncio.sleep(self.latency)
                if self.fail_with is not None:
                    raise self.fail_with
                self._check(model)
                yield {name: array for name, array in response.items() if not outputs or name in outputs}
            is_whole = True
        finally:
            if not is_whole:
                self.ended.append(model)
            reader = asyncio.create_task(self._read_on(ended))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)

    async def _read_on(self, ended: Callable[[], object]) -> None:
        if self.hold is not None:
            await self.hold.wait()
        ended()

    async def is_live(self) -> bool:
        """See ``Backend.is_live``."""
        return self.is_up

    def lacks(self, model: str) -> bool:
        """See ``Backend.lacks``."""
        return self.is_up and model not in self.models

    async def is_ready(self, model: str) -> bool:
        """See ``Backend.is_ready``."""
        return self.is_up and model in self.models

    async def why_not_ready(self, model: str) -> str:
        """See ``Backend.why_not_ready``."""
        return f"the fake backend does not have {model}" if self.is_up else "the fake backend is down"

    async def describe(self, model: str) -> ModelInfo:
        """See ``Backend.describe``."""
        self._check(model)
        return self.models[model][0]

    async def close(self) -> None:
        """See ``Backend.close``."""
        self.is_up = False

    def _check(self, model: str) -> None:
        if not self.is_up:
            raise BackendUnavailable("the fake backend is down", retry_after=1)
        if model not in self.models:
            raise ModelNotReady(f"model {model} is not loaded", retry_after=1)


@asynccontextmanager
async def _until(timeout: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            if timeout <= 0:
                await asyncio.sleep(0)
            yield
    except TimeoutError:
        raise DeadlineExceeded("Triton did not answer within the request's time") from None


class FakeRegistry:
    """A registry in memory, with all of ``RegistryWriter``: edit ``endpoints``, ``canary``… and ``models``; files are
    local paths.

    ``is_up`` False makes every call raise ``RegistryUnavailable``; ``ledger`` is a ``FakeLedger``.
    """

    def __init__(self, task_id: str = "task") -> None:
        self.task_id = task_id
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.canary: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, str] = {}
        self.artifacts: dict[str, ArtifactRef] = {}
        self.models: dict[str, ModelRecord] = {}
        """Models by id, the oldest first."""
        self.published: set[str] = set()
        """The ids of published models."""
        self.sections: dict[str, str] = {}
        """Texts of sections; they override those of ``endpoints`` and ``canary``."""
        self.containers: list[str] = []
        """Ids of clearml-serving's own inference containers."""
        self.users: dict[str, str] = {}
        """Names of ClearML's users by id."""
        self.reported: list[Mapping[str, Any]] = []
        self.listed: dict[str, Mapping[str, Any]] = {}
        """Endpoints that were reported, by container."""
        self.is_up = True
        self.downloads: list[str] = []
        """The addresses of files that were downloaded completely."""
        self.fetched = 0
        """The bytes of files that were read."""
        self.gives_parts = True
        self.attached: dict[str, bytes] = {}
        """Attached files, by address."""
        self.ledger = FakeLedger()
        self.history = FakeLedger()
        self.reports = FakeLedger()

    def add_model(self, model_id: str, path: Path, *, is_published: bool = True, **fields: Any) -> None:
        """Register a file (or a zip of a folder) as a model; ``fields`` are those of ``ModelRecord``."""
        known = {"name": model_id, "uri": path.as_uri(), "framework": "onnx", **fields}
        self.models[model_id] = ModelRecord(model_id, **known)
        if is_published:
            self.published.add(model_id)

    def add_endpoint(self, url: str, model_id: str | None, *, engine: str = "triton", **fields: Any) -> None:
        """Configure an endpoint; ``fields`` are those of ClearML."""
        version = fields.pop("version", "")
        key = f"{url}/{version}" if version else url
        self.endpoints[key] = {
            "engine_type": engine, "serving_url": url, "version": version,
            **({"model_id": model_id} if model_id else {}),
            **fields,
        }  # fmt: skip

    def add_artifact(self, key: str, path: Path, *, sha256: str | None = None, is_archive: bool = False) -> None:
        """Attach preprocess code to the Task; it replaces code with the same key."""
        self.artifacts[key] = ArtifactRef(key, path.as_uri(), sha256, is_archive)

    def marker(self) -> str:
        """See ``Registry.marker``."""
        return repr(self.task())

    def task(self) -> ServingTask:
        """See ``Registry.task``."""
        self._check()
        texts = {"endpoints": json.dumps(self.endpoints), "canary": json.dumps(self.canary), **self.sections}
        task = ServingTask(self.task_id, "fake serving", texts, dict(self.settings), dict(self.artifacts))
        try:
            return replace(task, records=self.ledger.read())
        except RegistryRefused as error:
            return replace(task, problem=f"triton-gateway's records cannot be read: {error.message}")

    def model(self, model_id: str) -> ModelRecord:
        """See ``Registry.model``."""
        self._check()
        if model_id not in self.models:
            raise RegistryRefused(f"models.get_by_id: Invalid model id {model_id}")
        return self.models[model_id]

    def lineage(self, model_id: str) -> Mapping[str, Any]:
        """See ``Registry.lineage``."""
        return {"model": {"id": model_id, "link": self.model(model_id).link}, "notes": []}

    def models_at(self, uris: Collection[str]) -> Sequence[ModelRecord]:
        """See ``RegistryWriter.models_at``."""
        self._check()
        return [model for model in self.models.values() if model.uri in uris]

    def records(self, model_ids: Collection[str]) -> Mapping[str, ModelRecord]:
        """See ``Registry.records``."""
        self._check()
        return {i: self.models[i] for i in model_ids if i in self.models}

    def followed(self) -> str:
        """See ``RegistryWriter.followed``."""
        self._check()
        return self.task_id

    def spec(self) -> ServingSpec:
        """See ``RegistryWriter.spec``."""
        return decode(self.task())

    def find_models(self, query: ModelQuery) -> Sequence[str]:
        """See ``RegistryWriter.find_models``; a model's ``project`` is its name here."""
        self._check()
        found = [i for i in reversed(self.models) if self._matches(query, self.models[i])]
        return found[: query.most]

    def write(self, sections: Mapping[str, str], records: Sequence[Record] = ()) -> None:
        """See ``RegistryWriter.write``."""
        self._check()
        self.ledger.write(records)
        self.sections |= sections

    def attach(self, key: str, path: Path) -> None:
        """See ``RegistryWriter.attach``."""
        self._check()
        if path.is_dir():
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for file in sorted(one for one in path.rglob("*") if one.is_file()):
                    archive.write(file, file.relative_to(path))
            raw, name = packed.getvalue(), f"{key}.zip"
        else:
            raw, name = path.read_bytes(), path.name
        uri = f"attached://{len(self.attached)}/{name}"
        self.attached[uri] = raw
        self.artifacts[key] = ArtifactRef(key, uri, hashlib.sha256(raw).hexdigest(), path.is_dir())

    def project_name(self, project_id: str) -> str:
        """Return the project's name: its id, here."""
        self._check()
        return project_id

    def stock_containers(self) -> Sequence[str]:
        """See ``RegistryWriter.stock_containers``."""
        self._check()
        return list(self.containers)

    def user_name(self, user_id: str) -> str:
        """See ``RegistryWriter.user_name``."""
        self._check()
        return self.users.get(user_id, user_id)

    def report(self, events: Sequence[Mapping[str, Any]]) -> None:
        """See ``RegistryWriter.report``; ``reported`` keeps them."""
        self._check()
        self.reported += events

    def report_endpoint(self, report: Mapping[str, Any]) -> None:
        """See ``RegistryWriter.report_endpoint``; ``listed`` keeps the last one of each container."""
        self._check()
        self.listed[str(report["container_id"])] = report

    def register(self, upload: Upload) -> str:
        """See ``RegistryWriter.register``; the package lies in ``scratch``, or else beside the folder."""
        self._check()
        packed = pack(upload.folder, upload.scratch or upload.folder.parent, upload.name)
        for model_id, model in self.models.items():
            if model.uri == packed.as_uri() and model.name == upload.name:
                return model_id
        model_id = f"registered-{len(self.models)}"
        self.add_model(
            model_id, packed, is_package=True, name=upload.name, project=upload.project, framework=upload.framework,
            tags=tuple(upload.tags),
        )  # fmt: skip
        return model_id

    def _matches(self, query: ModelQuery, model: ModelRecord) -> bool:
        return (
            query.project in (None, model.project)
            and query.name in (None, model.name)
            and (not query.tags or not {*query.tags}.isdisjoint(model.tags))
            and (model.id in self.published or not query.only_published)
            and (not query.ids or model.id in query.ids)
            and bool(model.uri)
        )

    def download(self, uri: str, folder: Path) -> Path:
        """See ``Registry.download``."""
        self._check()
        if uri in self.attached:
            target = folder / file_name(uri.rpartition("/")[2])
            target.write_bytes(self.attached[uri])
            return target
        source = Path(unquote(uri.removeprefix("file://")))
        if not source.is_file():
            raise RegistryRefused(f"{uri} does not exist")
        self.downloads.append(uri)
        target = folder / file_name(source.name)
        target.write_bytes(source.read_bytes())
        self.fetched += source.stat().st_size
        return target

    def parts(self, uri: str) -> Parts | None:
        """See ``Registry.parts``; what is read is counted in ``fetched``. ``gives_parts`` False: no store gives any."""
        self._check()
        source = Path(unquote(uri.removeprefix("file://")))
        if not source.is_file():
            raise RegistryRefused(f"{uri} does not exist")

        def read(start: int, count: int) -> Iterator[bytes]:
            self._check()
            with source.open("rb") as file:
                file.seek(start)
                content = file.read(count)
            self.fetched += len(content)
            yield content

        return Parts(source.stat().st_size, read) if self.gives_parts else None

    def _check(self) -> None:
        if not self.is_up:
            raise RegistryUnavailable("the fake registry is down")


class FakeLedger:
    """Records in memory, as over the wire: what is read is a copy.

    ``is_up`` False makes every call raise ``RegistryUnavailable``, ``is_read_only`` makes ``write`` raise
    ``RegistryRefused``; ``writes`` counts the calls of ``write`` that changed something.
    """

    def __init__(self) -> None:
        self.is_up = True
        self.is_read_only = False
        self.writes = 0
        self._stored: dict[str, dict[str, str]] = {}

    def marker(self) -> str:
        """See ``Ledger.marker``."""
        self._check()
        return str(self.writes) if self._stored else ""

    def read(self) -> Records:
        """See ``Ledger.read``."""
        self._check()
        # Copies first: other threads may be writing.
        stored = {kind: dict(of) for kind, of in dict(self._stored).items()}
        return {kind: {key: json.loads(text) for key, text in of.items()} for kind, of in stored.items()}

    def write(self, records: Iterable[Record]) -> None:
        """See ``Ledger.write``."""
        self._check()
        if self.is_read_only:
            raise RegistryRefused("the fake ledger is read-only")
        texts = [(record.kind, record.key, json.dumps(dict(record.value))) for record in records]
        for kind, key, text in texts:
            self._stored.setdefault(kind, {})[key] = text
        self.writes += bool(texts)

    def remove(self, kind: Kind, keys: Iterable[str]) -> None:
        """See ``Ledger.remove``."""
        self._check()
        for key in keys:
            self._stored.get(kind, {}).pop(key, None)

    def _check(self) -> None:
        if not self.is_up:
            raise RegistryUnavailable("the fake ledger is down")
