"""How Sphinx makes the documentation site: `make site`, or `python -m sphinx -c docs . build/site`.

The pages are the Markdown files as they lie in the repository, so a link works in a checkout and on the site alike; the
navigation is read from the links of the pages that list others. Nothing is fetched.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
LISTS = ("docs/index", "examples/README")
"""Pages whose links, in their order and under their headings, are the navigation."""

project = "triton-gateway"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
project_copyright = "the triton-gateway authors, Apache License 2.0"

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/**.md", "benchmarks/README.md", "k8s/helm/triton-gateway/README.md"]
# Folders that hold no page are not walked through.
exclude_patterns = [
    ".*", "*.egg-info", "build", "dist",
    "benchmarks/[a-z]*", "dashboards", "deploy", "gateway", "preprocessing", "tests",
]  # fmt: skip
myst_heading_anchors = 4
nitpicky = True
# Answers are shortened with `…`, which is no JSON, no YAML and no shell.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"triton-gateway {release}"
html_copy_source = False
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", navigation)


def navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add a table of contents to a page that lists others: what it links to, with its headings as captions."""
    if page not in LISTS:
        return
    parts = re.split(r"^## (.*)$", source[0], flags=re.M)
    for caption, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        links = [
            posixpath.normpath(f"{posixpath.dirname(page)}/{link}")
            for link in re.findall(r"\]\(([\w./-]+)\.md\)", text)
        ]
        entries = [f"/{link}" for link in dict.fromkeys(links) if link != page]
        if entries:
            head = ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
            source[0] += "\n".join([*head, *entries, "```", ""])
