"""What is left of a long step: an estimate by pace, and how far an upload is."""

from __future__ import annotations

from pathlib import Path

from deploy.cli.remaining import Pace, of_upload


def test_the_time_left_follows_the_pace_since_the_first_count() -> None:
    """Nothing is said before the second count; between counts it runs down, never below zero."""
    now = [100.0]
    pace = Pace(lambda: now[0])
    assert "" == pace.told("PyTorch: 8 of 64 texts")()
    now[0] += 4
    left = pace.told("PyTorch: 16 of 64 texts")
    assert ", about 24 s left" == left()
    now[0] += 10
    assert ", about 14 s left" == left()
    now[0] += 90
    assert ", about 0 s left" == left()


def test_each_step_is_counted_for_itself() -> None:
    """Another step or total, or a count from the beginning, starts anew; without a count there is no estimate."""
    now = [0.0]
    pace = Pace(lambda: now[0])

    def told(text: str) -> str:
        now[0] += 1
        return pace.told(text)()

    assert ["", ", about 2 s left", "", "", ", about 8 s left", "", ", about 1 s left", ""] == [
        told(text) for text in (
            "speed 1/4: batch 1 × 8", "speed 2/4: batch 1 × 8", "PyTorch: 1 of 9 texts", "PyTorch: 1 of 10 rows",
            "PyTorch: 2 of 10 rows", "PyTorch: 1 of 10 rows", "PyTorch: 6 of 10 rows", "loading the model",
        )
    ]  # fmt: skip


def test_an_upload_says_how_much_of_the_package_is_read(tmp_path: Path) -> None:
    """Only of what is uploaded: not while it is packed, and of no other file."""
    (tmp_path / "model").mkdir()
    path, left = tmp_path / "model" / "m-0.zip", of_upload(tmp_path)
    path.write_bytes(bytes(8_000_000))
    (tmp_path / "packing.zip").write_bytes(bytes(9_000_000))
    with (tmp_path / "packing.zip").open("rb"):
        assert "" == left()
    with path.open("rb", buffering=0) as package:
        assert ": 0 of 8 MB" == left()
        package.read(2_000_000)
        assert left().startswith(": 2 of 8 MB, about ")
    assert "" == left()
