"""The key of Triton's control APIs: made once, for its owner only, and read as it is now."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.sync.client import AdminClient
from deploy.tritonserver.key import arguments, ensure_key, hide
from gateway.errors import BackendRefused
from gateway.triton.key import key_file, read_key


def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    """In the state folder unless it is named. A second start finds the first one's; a given Secret is not written."""
    file = key_file("", tmp_path)
    assert tmp_path / "triton" / "key" == file
    key = ensure_key("", tmp_path)
    assert (64, 0o600) == (len(key), file.stat().st_mode & 0o777)
    assert key == ensure_key("", tmp_path) == read_key(file)
    given = tmp_path / "given"
    given.write_text("given-by-a-person-1234\n")
    given.chmod(0o400)
    assert "given-by-a-person-1234" == ensure_key(str(given), tmp_path)


@pytest.mark.parametrize("content", ["", "short", "with a blank in it, and long enough", "a:colon=for-triton-1234567"])
def test_what_is_no_key_is_refused_with_what_one_is(tmp_path: Path, content: str) -> None:
    """Triton's option would be cut at a comma or a colon."""
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(ValueError, match="holds no key: 16 or more of A-Z"):
        ensure_key(str(file), tmp_path)
    with pytest.raises(BackendRefused, match="holds no key"):
        AdminClient("127.0.0.1:1", key_file=file, timeout_s=0.2).index()


def test_both_protocols_restrict_what_runs_code_and_nothing_that_inference_needs() -> None:
    """Health, metadata and inference stay open."""
    for argument in arguments("K" * 32):
        apis = argument.partition("=")[2].partition(":")[0].split(",")
        assert {"model-repository", "shared-memory", "trace", "logging"} == set(apis)


def test_a_key_in_the_command_line_of_a_child_is_hidden() -> None:
    """`ps` shows asterisks; the child goes on."""
    key = "k" * 40
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", f"--key={key}"], stdin=subprocess.PIPE
    )
    try:
        line = Path(f"/proc/{child.pid}/cmdline")
        while key.encode() not in line.read_bytes():
            time.sleep(0.01)
        assert hide(key, child.pid)
        assert (f"--key={'*' * 40}".encode() in line.read_bytes(), None) == (True, child.poll())
    finally:
        child.communicate(timeout=60)
    assert not hide(key, child.pid)
