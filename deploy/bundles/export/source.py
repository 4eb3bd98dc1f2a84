"""Where the original comes from: a folder or a hub name, checked to be a model this system can serve.

Called first by ``triton-gateway optimize``; everything it refuses is refused before weights are loaded. Where the
tokenizer is not taken over as it is (``tokens``), the source is a copy that belongs to this run alone: nothing is ever
written into the user's folder, and nothing of another run is ever read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deploy.bundles import hub
from deploy.bundles.export import custom_code, tokens
from deploy.bundles.export.tokens import Reads
from deploy.bundles.model_files import TOKENIZERS, digest, kept_files
from deploy.tools.errors import DeployError, ExportFailed
from preprocessing.config import EMBEDDINGS, TaskConfig
from preprocessing.errors import PreprocessingError
from preprocessing.heads import head_for

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True, slots=True)
class Source:
    """The original: its folder, what the user called it, what it does, the hash of all its files."""

    folder: Path
    """What is exported and bundled: ``origin``, or this run's copy of it with a ``tokenizer.json``."""
    origin: Path
    """The folder the user named, or the hub or registry gave: what every candidate is compared with."""
    given: str
    name: str
    config: TaskConfig
    digest: str
    """Of the files in ``origin``."""
    notes: tuple[str, ...] = ()
    """What is worth knowing about it, a sentence each."""

    def check_unchanged(self) -> None:
        """Raise ``ExportFailed`` when the files the user named are not those that were found at first."""
        if digest(self.origin) != self.digest:
            raise ExportFailed(
                f"the files of {self.given} changed while the bundle was being made, so no bundle was made",
                hint="run the command again when they are complete",
            )

    def kept(self) -> dict[str, str]:
        """Return the hashes of the files a bundle takes over: the user's own, but for the tokenizer written here."""
        return {**kept_files(self.origin), "tokenizer.json": kept_files(self.folder)["tokenizer.json"]}

    def read_from(self, reads: Reads) -> Path:
        """Return the folder whose tokenizer is the truth: the user's own, wherever it has what is asked for."""
        return self.folder if reads == "file" and not (self.origin / "tokenizer.json").is_file() else self.origin


def find_source(
    given: str, *, task: str, scratch: Path, reads: Reads = "transformers", fetched: Path | None = None
) -> Source:
    """Return the model named ``given`` (a folder, or a hub name that is fetched or in the local cache; ``fetched`` is
    where the registry's model of that id lies).

    ``task`` is ``auto`` or the task to serve it as, ``reads`` whose tokens are meant, ``scratch`` an empty folder of
    this run's own. Raises ``DeployError`` with what is wrong and what to do.
    """
    folder = fetched or Path(given).expanduser()
    if not folder.is_dir():
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", given):
            raise DeployError(f"there is no folder {given}", hint="give a Hugging Face model's folder, or a hub name")
        folder = hub.fetch(given)
    folder = origin = folder.resolve()
    if not (folder / "config.json").is_file():
        raise ExportFailed(
            f"{folder} has no config.json", hint="give the folder of a Hugging Face model, or a hub name"
        )
    custom_code.check(folder)
    if not any(True for pattern in _WEIGHTS for _ in folder.glob(pattern)):
        raise ExportFailed(f"{folder} holds no weights", hint=f"expected one of {', '.join(_WEIGHTS)}")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ExportFailed(f"{folder} has no tokenizer", hint=f"expected one of {', '.join(TOKENIZERS)}")
    try:
        chosen = None if task == "auto" else {"task": task}
        head_for(TaskConfig.from_folder(folder, chosen))
        note = ""
        if reads == "transformers" or not (folder / "tokenizer.json").is_file():
            folder, note = tokens.as_transformers_reads(folder, scratch)
        config = TaskConfig.from_folder(folder, chosen)
    except PreprocessingError as error:
        raise ExportFailed(error.message, hint=error.hint or "") from error
    if config.task == EMBEDDINGS and not config.pooling:
        raise ExportFailed(
            "modules.json lists layers after pooling, which the exporter does not know",
            hint="export the whole sentence-transformers pipeline to ONNX yourself, with an output sentence_embedding",
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", given.rstrip("/").rsplit("/", 1)[-1]).strip("-.") or "model"
    return Source(folder, origin, given, name, config, digest(origin), (note,) if note else ())
