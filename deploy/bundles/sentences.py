"""Example sentences in many languages and scripts, one a line in ``sentences.txt``."""

from pathlib import Path
from typing import Final

SENTENCES: Final = tuple(Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").split("\n")[:-1])
