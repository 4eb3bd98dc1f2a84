"""A bundle's files and the hashes in its manifest: the files that were checked are the files that are loaded."""

from __future__ import annotations

import hashlib
import json

import pytest

from gateway import manifest
from gateway.errors import ArtifactCorrupt

FILES = {"model.onnx": b"graph", "tokenizer.json": b"{}", "1_Pooling/config.json": b"{}", "report.md": b"#"}


@pytest.fixture
def bundle(tmp_path):
    """A folder as `optimize` writes it."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    files = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    (tmp_path / manifest.FILE).write_text(json.dumps({"format": 1, "files": files}))
    return tmp_path


def everything(name):
    """Return all files."""
    return True


CHANGED = {
    **dict.fromkeys(("model.onnx", "tokenizer.json", "1_Pooling/config.json"), "is not the file that was judged"),
    **dict.fromkeys(
        ("sentence_bert_config.json", "config.json", "model.onnx.data", "2_Dense/config.json",
         "0_Transformer/sentence_bert_config.json"), "was added to the bundle"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_or_added_file_is_refused_by_its_name(bundle, name):
    """For one changed byte; a missing one as well. Those that change no answers may be added."""
    (bundle / name).parent.mkdir(exist_ok=True)
    with (bundle / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtifactCorrupt, match=f"{name} .*{CHANGED[name]}"):
        manifest.check(bundle, is_used=everything)
    (bundle / name).unlink()
    if name in FILES:
        with pytest.raises(ArtifactCorrupt, match=f"{name} of the bundle cannot be read"):
            manifest.check(bundle, is_used=everything)


def test_a_huge_manifest_is_refused_before_it_is_parsed(bundle):
    """Parsing it would stop all requests of the process."""
    with (bundle / manifest.FILE).open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ArtifactCorrupt, match=r"manifest\.json .*it has 1024 MiB, at most 8 MiB are read"):
        manifest.recorded(bundle)


def test_only_used_files_are_read(bundle):
    """A gateway does not read the weights, which Triton gets from model sync. Users may add files to bundles; a folder
    without a manifest, with another program's, or a single file is accepted.
    """
    (bundle / "preprocess.py").write_text("class Preprocess: pass")
    (bundle / "reference.json").write_text("{}")
    manifest.check(bundle, is_used=everything)
    (bundle / "model.onnx").write_bytes(b"other")
    manifest.check(bundle, is_used=lambda name: not manifest.is_weights(name))
    assert [True, True, False] == [manifest.is_weights(n) for n in ("model.onnx", "model.onnx.data", "config.json")]
    manifest.check(bundle / "model.onnx", is_used=everything)
    for text in ('{"name": "a web page", "files": ["a"]}', "[]"):
        (bundle / manifest.FILE).write_text(text)
        manifest.check(bundle, is_used=everything)
    (bundle / manifest.FILE).unlink()
    manifest.check(bundle, is_used=everything)


INVALID = {
    "no JSON": "{", "deep": "[" * 100_000, "no hash": '{"files": {"model.onnx": "x"}}', "no files": '{"chosen": {}}',
    "part": '{"chosen": {}, "files": {"config.json": "x"}}',
    # Reading it could take for ever, and would tell whether somebody else's file has a hash.
    **{f"outside: {name[:9]!r}": json.dumps({"files": {"model.onnx": "0" * 64, name: "0" * 64}})
       for name in ("/dev/zero", "../other/model.onnx", "a\\..\\b", "x\0y", "n" * 300, "..")},
}  # fmt: skip


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_an_invalid_manifest_is_refused(tmp_path, text):
    """A partial one proves nothing; none names a file outside its bundle."""
    (tmp_path / manifest.FILE).write_text(text)
    names = " names" if "000" in text else ""
    with pytest.raises(ArtifactCorrupt, match=rf"manifest\.json of the model{names}"):
        manifest.check(tmp_path, is_used=everything)
