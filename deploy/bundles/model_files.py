"""The files of a model: which of them a bundle takes over, and their hashes. Needs no torch."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

KEPT: Final = (
    "tokenizer.json",
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "generation_config.json",
    "chat_template.jinja",
)
"""Files that a bundle takes over, besides the folders of a sentence-transformers model's modules."""

TOKENIZERS: Final = (
    "tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spm.model", "spiece.model",
    "tokenizer.model", "sentencepiece.model",
)  # fmt: skip
"""A folder with a tokenizer has at least one of these files."""


def digest(path: Path, *, made_by: str = "") -> str:
    """Return one hash of all files of a model; ``path`` is its folder, or its only file.

    ``made_by`` is hashed too: it says what was made of these files.
    """
    found = hashlib.sha256(f"{made_by}\0".encode() if made_by else b"")
    top = path if path.is_dir() else path.parent
    for file in _files(path) if path.is_dir() else (path,):
        found.update(f"{file.relative_to(top).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()


def kept_files(folder: Path) -> dict[str, str]:
    """Return the hash of every file in ``folder`` that ``copy_texts`` copies."""
    found = {}
    for path in (*(folder / name for name in KEPT), *sorted(folder.glob("*_*/config.json"))):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def copy_texts(source: Path, target: Path) -> None:
    """Copy the tokenizer and configuration files of ``source``, with the folders that ``modules.json`` names."""
    for name in KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    for config in source.glob("*_*/config.json"):
        (target / config.parent.name).mkdir(exist_ok=True)
        shutil.copyfile(config, target / config.parent.name / config.name)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and path.suffix not in (".md", ".pyc"):
            yield path
