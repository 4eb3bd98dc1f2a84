"""The original's tokens: the tokenizer that a bundle takes over, and the one it is compared with.

The gateway reads ``tokenizer.json`` with the `tokenizers` library. For a model without that file, transformers makes
one of the other files. But transformers does not always follow the file: since version 5, many of its classes build the
normalizer and the splitting themselves (DeBERTa's leaves out SentencePiece's normalizer). A bundle must answer like the
pipeline, so it takes over what transformers uses and says if that differs from the file; ``--tokenizer file`` chooses
the file. Nothing is ever written into the user's folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from deploy.bundles.export import custom_code
from deploy.bundles.sentences import SENTENCES
from deploy.tools.errors import ExportFailed, first_line
from preprocessing.model_files import read_json

Reads = Literal["transformers", "file"]
"""Whose reading of ``tokenizer.json`` is served and is the truth: transformers' own, or the file's."""

Tokenize = Callable[..., list[int]]
"""One text, or the two of a pair → its ids, special tokens included."""

_ODD: Final = (
    "½ cup of ﬁne flour, please…",
    "a\u00a0b \u200bc\u3000d",
    "Two  spaces,\ta tab\nand a line",
    " in front and behind ",
    "ＦＵＬＬ ｗｉｄｔｈ ｶﾞｷﾞ",
    "cafe\u0301 \u0301x Å \u212b",
    "``quoted'' don't İSTANBUL ẞ",
    "soft\u00adhyphen zero\u200dwidth \ufeffmark",
    "👩\u200d👩\u200d👧 🇩🇪 1,000.50 §42",
)


def as_transformers_reads(folder: Path, scratch: Path) -> tuple[Path, str]:
    """Return a folder whose ``tokenizer.json`` makes the tokens that transformers makes, and a note if it had to
    change.

    Returns ``folder`` itself and an empty note if its own file already makes these tokens. Raises ``ExportFailed`` if
    transformers cannot read the tokenizer.
    """
    tokenizer = _from_transformers(folder)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not (folder / "tokenizer.json").is_file():
        if backend is None:
            raise ExportFailed(
                f"this model's tokenizer, {type(tokenizer).__name__}, exists only as Python code in transformers and "
                "cannot be saved as tokenizer.json",
                hint="serve the model through a Preprocess class",
            )
        return _copy(folder, scratch, backend), ""
    own = read_file(folder)
    texts = [*((text,) for text in (*SENTENCES, *_ODD)), *zip(SENTENCES, _ODD, strict=False)]
    texts += [(f"a {token} b",) for token in _added(folder)]
    made = [(text, _ids(tokenizer, text), own(*text)) for text in texts]
    wrong = [(text, ids, its) for text, ids, its in made if ids != its]
    if not wrong or backend is None:
        return folder, ""
    text, ids, its = wrong[0]
    return _copy(folder, scratch, backend), (
        f"transformers {metadata.version('transformers')} does not follow this tokenizer.json: its "
        f"{type(tokenizer).__name__} makes other tokens for {len(wrong)} of {len(texts)} texts, for example for "
        f"{shown(text)}: {first_difference(ids, its)}. The bundle uses the tokens that transformers makes, so it "
        "answers like transformers' pipeline"
    )


def reader(folder: Path, reads: Reads, max_length: int | None = None) -> Tokenize:
    """Return a function that makes the true tokens of a text or a pair, cut to ``max_length`` if it is given."""
    if reads == "file" and (folder / "tokenizer.json").is_file():
        return read_file(folder, max_length)
    tokenizer = _from_transformers(folder)
    cut = {} if max_length is None else {"truncation": True, "max_length": max_length}
    return lambda *texts: _ids(tokenizer, texts, **cut)


def read_file(folder: Path, max_length: int | None = None) -> Tokenize:
    """Return a function that reads ``tokenizer.json`` with the `tokenizers` library alone. Raises ``ExportFailed``."""
    from tokenizers import Tokenizer

    try:
        tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:
        raise ExportFailed(f"tokenizer.json cannot be loaded: {error}", hint="save the tokenizer again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_length is not None:
        tokenizer.enable_truncation(max_length)

    def tokenize(*texts: str) -> list[int]:
        try:
            return list(tokenizer.encode(*texts).ids)
        except Exception as error:
            raise ExportFailed(
                f"tokenizer.json fails on {shown(texts)}: {first_line(error)}", hint="save the tokenizer again"
            ) from error

    return tokenize


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Describe where two lists of tokens begin to differ."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"from token {at} on {list(ours[at : at + 6])} instead of {list(theirs[at : at + 6])}"


def shown(text: str | tuple[str, ...]) -> str:
    """Return a text, or the texts of a pair, for a message: quoted, at most 80 characters each."""
    parts = text if isinstance(text, tuple) else (text,)
    return " and ".join(json.dumps(part if len(part) <= 80 else part[:79] + "…", ensure_ascii=False) for part in parts)


def _from_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, **custom_code.arguments())
    except Exception as error:
        raise ExportFailed(
            f"transformers cannot read the model's tokenizer: {first_line(error)}",
            hint="try AutoTokenizer.from_pretrained(…) on the folder, and save the tokenizer again",
        ) from error


def _copy(folder: Path, scratch: Path, backend: Any) -> Path:
    """Return a folder of links to the model's files, with a ``tokenizer.json`` of ``backend``."""
    copy = scratch / "source"
    copy.mkdir(parents=True)  # fails if it exists, because a leftover of another run would be another model
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            target = copy / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path.resolve())
    (copy / "tokenizer.json").unlink(missing_ok=True)
    backend.save(str(copy / "tokenizer.json"))
    return copy


def _added(folder: Path) -> list[str]:
    """Return the tokens that tokenizer_config.json adds."""
    try:
        listed = read_json(folder / "tokenizer_config.json")["added_tokens_decoder"]
        tokens = [token.get("content") if isinstance(token, dict) else token for token in listed.values()]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return []
    return [token for token in tokens if isinstance(token, str)]


def _ids(tokenizer: Any, texts: tuple[str, ...], **cut: Any) -> list[int]:
    try:
        return list(tokenizer(*texts, **cut)["input_ids"])
    except Exception as error:
        raise ExportFailed(
            f"the model's tokenizer fails on {shown(texts)}: {first_line(error)}",
            hint="its files may not belong together: save the tokenizer again",
        ) from error
