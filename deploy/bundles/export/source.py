"""Finds the original, a folder or a hub name, and checks that it can be served.

``triton-gateway optimize`` calls it first; everything it refuses is refused before weights are loaded. If the tokenizer
is not taken over unchanged (``tokens``), the source is a copy in this run's folder: nothing is ever written into the
user's folder, and nothing of another run is read.
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.bundles import hub
from deploy.bundles.export import custom_code, tokens
from deploy.bundles.export.tokens import Reads
from deploy.bundles.model_files import digest, kept_files
from deploy.bundles.model_kinds import recognise
from deploy.tools.errors import DeployError, ExportFailed, GatewayError
from gateway.registry import ArtifactCache, ClearMLRegistry, is_id
from preprocessing.config import EMBEDDINGS, GENERATION, TaskConfig
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor


@dataclass(frozen=True, slots=True)
class Source:
    """The original: its folder, the user's name for it, its task, and the hash of all its files."""

    folder: Path
    """The folder that is exported and bundled: ``origin``, or this run's copy of it with a ``tokenizer.json``."""
    origin: Path
    """The folder from the user, the hub or the registry: every candidate is compared with it."""
    given: str
    name: str
    config: TaskConfig
    digest: str
    """Hash of the files in ``origin``."""
    notes: tuple[str, ...] = ()
    """Notes for the user, one sentence each."""

    def check_unchanged(self) -> None:
        """Raise ``ExportFailed`` if the user's files have changed since they were found."""
        if digest(self.origin) != self.digest:
            raise ExportFailed(
                f"the files of {self.given} changed while the bundle was being made, so no bundle was made",
                hint="run the command again when they are complete",
            )

    def kept(self) -> dict[str, str]:
        """Return the hashes of the files that a bundle takes over: the user's own, except a tokenizer written by this
        run.
        """
        return {**kept_files(self.origin), "tokenizer.json": kept_files(self.folder)["tokenizer.json"]}

    def read_from(self, reads: Reads) -> Path:
        """Return the folder whose tokenizer is the truth: the user's own if it has what ``reads`` asks for."""
        return self.folder if reads == "file" and not (self.origin / "tokenizer.json").is_file() else self.origin


def find_source(given: str, *, task: str, scratch: Path, reads: Reads = "transformers") -> Source:
    """Find the model ``given`` (a folder, the id of a registered model, or a hub name), and check it.

    ``task`` is ``auto`` or the task to serve, ``reads`` chooses whose tokens count, ``scratch`` is an empty folder of
    this run. Raises ``DeployError`` with what is wrong and what to do.
    """
    known = recognise(given, task=task)
    if known.path is None:
        fetched = _from_registry(given, scratch / "fetched") if is_id(given) else hub.fetch(given)
        known = recognise(str(fetched), task=task)
    if known.kind != "transformers" or known.path is None:
        raise ExportFailed(f"{given} needs no export", hint="give its files to `triton-gateway deploy`")
    folder = origin = known.path.resolve()
    custom_code.check(folder)
    refuse_generation(known.config, given)
    note, chosen = "", None if task == "auto" else {"task": task}
    try:
        if reads == "transformers" or not (folder / "tokenizer.json").is_file():
            folder, note = tokens.as_transformers_reads(folder, scratch)
        config = TextProcessor.from_folder(folder, options=chosen, word_cache=False).config
    except PreprocessingError as error:
        raise ExportFailed(error.message, hint=error.hint or "") from error
    if config.task == EMBEDDINGS and not config.pooling:
        raise ExportFailed(
            "modules.json lists layers after pooling, which the exporter does not know",
            hint="export the whole sentence-transformers pipeline to ONNX yourself, with an output sentence_embedding",
        )
    notes = (f"{note}; to follow the file instead, add --tokenizer file",) if note else ()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", given.rstrip("/").rsplit("/", 1)[-1]).strip("-.") or "model"
    return Source(folder, origin, given, name, config, digest(origin), notes)


def _from_registry(model_id: str, folder: Path) -> Path:
    """Download the ClearML model ``model_id`` into the empty ``folder``; return the folder that holds its files.

    The SDK's ``get_local_copy`` is not used: it finds unpacked models again by their address, even if other bytes are
    stored there now.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            store = ClearMLRegistry()
            return ArtifactCache(folder, store).model(store.model(model_id))
    except GatewayError as error:
        raise DeployError(
            f"model {model_id} cannot be fetched: {error.message}",
            hint="set CLEARML_API_HOST and its keys, or write clearml.conf; `source .triton-gateway/env` sets those of "
            "`triton-gateway up`",
        ) from error


def refuse_generation(config: TaskConfig | None, given: str) -> None:
    """Raise ``ExportFailed`` for a model that generates text: optimum exports those."""
    if config is not None and config.task == GENERATION:
        raise ExportFailed(
            f"{given} generates text, and such models are not exported here",
            hint=f"`optimum-cli export onnx --model {given} --task text-generation-with-past FOLDER` (pip install "
            "optimum-onnx) makes a graph with a cache; give FOLDER, with the tokenizer, to `triton-gateway deploy`",
        )
