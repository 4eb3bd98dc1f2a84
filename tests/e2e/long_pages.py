"""What docs and examples tell to type is typed: page by page, beside one `triton-gateway up --demo`, and what comes is
compared with what is shown (`…` is anything, and a figure of the docs any figure).

`.ci/run pages` runs it. What no machine alone can do (a cluster, minutes of traffic, a server that stays in front) is
listed in ``UNTYPED`` with the reason; tests/docs/test_blocks.py reads them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import EXAMPLES, PAGES, ROOT, Block, blocks
from tests.e2e.test_up_demo import Up, clean_environment
from tests.integration import tiny_generators, tiny_models

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

MODEL: Final = ROOT / "deploy" / "laptop" / "demo" / "words_model"

UNTYPED: Final = {
    r"^(kubectl|helm)": "needs a cluster: .ci/run cluster",
    r"docker compose": "needs an engine: .ci/run containers",
    r"^tritonserver|^openssl|^chmod": "NVIDIA's container",
    r"^(make|pip) |^\. \.venv/": "installs, or starts what runs here already",
    r"^python -m benchmarks": "minutes to hours, on a machine without other work",
    r"triton-gateway (up|serve|sync|controlplane|optimize)\b": "stays in front, or takes minutes",
    r"canary abort": "needs a rollout that runs",
    r"canary run (?!--endpoint mood)|drift (capt|rep)|boards push": "takes traffic, or a server",
    r"--registry|TRITON_GATEWAY_KEYS_FILE|tgk_": "a gateway that knows its callers: tests/unit/gateway/http",
    r"optimized/|distilbert/": "needs a network, or torch",
    r"auto-update": "goes on with every model that is published: tests/integration/test_who_writes.py",
    r"v1/feedback": "the endpoint of that page is the reader's: tests/unit/gateway/admin/test_feedback.py",
    r"serve/(demo|my-model)\b": "of the compose stack",
    r"\$ID\b|bundle/|export/model.onnx": "a model of the reader's",
    r"clearml-serving .*(--endpoint length|canary --endpoint sentiment)": "the models of that page are the reader's",
}
"""Lines that are not typed, and why."""

ELSEWHERE: Final = {
    "README.md": "tests/e2e/long_readme.py, in a bare shell",
    "docs/commands.md": "the examples of `--help`",
    "docs/http-api.md": "tests/integration/forms/test_page.py, in front of a model of every kind",
}
"""Pages whose lines other tests have."""

FILES: Final = {
    "docs/preprocess-class.md": {
        "preprocess.py": (
            "class Preprocess:\n"
            '    """A share."""\n'
            "    def process(self, body, state, collect_custom_statistics_fn=None):\n"
            '        if body["n"] < 0:\n'
            '            raise ValueError("n must not be negative")\n'
            '        collect_custom_statistics_fn({"n": body["n"]})\n'
            '        return {"share": 1 / body["n"]}\n'
        )
    },
}
"""What a page presumes beside the models."""

STATE: Final = """
version: 1
endpoints:
  faq/1: {engine_type: custom, version: "1", preprocess_artifact: py_code_faq}
  faq/2: {engine_type: custom, version: "2", preprocess_artifact: py_code_faq}
code:
  py_code_faq: {preprocess.py: "CODE"}
""".replace("CODE", r"class Preprocess:\n    def process(self, data): return data\n")


@dataclass
class Reader:
    """Somebody with the pages open, beside a running `up`."""

    up: Up
    folder: Path
    key: str = "abcd2345"
    """The id of the key that was made last; the pages call it so."""

    def place(self, page: str) -> Path:
        """The folder a page is followed in; made once."""
        if page in EXAMPLES:
            return self.folder / Path(page).parent
        place = self.folder / re.sub(r"\W", "-", page)
        if not place.exists():
            place.mkdir()
            (place / ".triton-gateway").symlink_to(self.up.state)
            (place / "deploy").symlink_to(ROOT / "deploy")
            if page != "docs/quickstart.md":  # which makes its own
                shutil.copytree(MODEL, place / "my-model")
                shutil.copytree(MODEL, place / "my-model-2")
                shutil.copytree(MODEL, place / "my-classifier-1")
                config = place / "my-model-2" / "config.json"
                config.write_text(config.read_text().replace("{", f'{{"of": "{place.name}-2",', 1))
                for name in ("my-model", "my-classifier-1"):
                    config = place / name / "config.json"
                    config.write_text(config.read_text().replace("{", f'{{"of": "{place.name}-{name}",', 1))
            if page == "docs/models.md":
                tiny_generators.save("gpt2", place / "gpt2-onnx", tiny_models.families.gpt2())
                tiny_generators.export(place / "gpt2-onnx")
            for name, text in FILES.get(page, {}).items():
                (place / name).write_text(text)
        return place

    def types(self, page: str, line: str) -> tuple[int, str]:
        """Type a line; returns the exit code and what was printed."""
        port = self.up.gateway.rpartition(":")[2]
        line = re.sub(r"(localhost|127\.0\.0\.1):8080", rf"127.0.0.1:{port}", line.replace("abcd2345", self.key))
        environ = clean_environment(self.up.home) | self.up.exported()
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.place(page), env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=600,
        )  # fmt: skip
        made = re.search(r"tgk_([a-z0-9]+)_", done.stdout)
        self.key = made[1] if made else self.key
        return done.returncode, done.stdout.replace(self.key, "abcd2345").replace("\r", "")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """`up --demo`, with a classifier in two versions and two endpoints of code."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / ".triton-gateway").symlink_to("state")
    up = Up(folder, "--demo")
    try:
        up.wait_ready()
        found = Reader(up, folder)
        place = found.place("before")
        (place / "state.yaml").write_text(STATE)
        for line in (
            "triton-gateway apply -f state.yaml",
            "triton-gateway deploy ./my-model --endpoint sentiment/1",
            "triton-gateway deploy ./my-model-2 --endpoint sentiment/2",
        ):
            code, printed = found.types("before", line)
            assert 0 == code, f"{line}\n{printed}"
        yield found
    finally:
        up.stop()


TYPED: Final = [
    block
    for block in blocks(*PAGES, *EXAMPLES)
    if block.kind == "console" and not block.why and block.page not in ELSEWHERE
]


def untyped(line: str) -> str:
    """Why a line is not typed; empty if it is."""
    return next((why for pattern, why in UNTYPED.items() if re.search(pattern, line)), "")


@pytest.mark.parametrize("block", TYPED, ids=lambda block: str(block).replace("/", "-"))
def test_what_a_page_says_to_type_does_what_it_shows(reader: Reader, block: Block) -> None:
    """Line after line, in the page's own folder. A line whose answer is shown may end with any code."""
    for command in block.commands():
        if untyped(command.line):
            continue
        code, printed = command.typed(lambda line=command.line: reader.types(block.page, line))  # type: ignore[misc]
        assert command.agrees(printed), f"{command.line}\n{printed}\nis not\n{command.shown}"
        assert 0 == code or command.shown.strip(), f"{command.line}\n{printed}"


@pytest.mark.parametrize(
    "block", [b for b in blocks() if b.page == "docs/quickstart.md" and b.kind == "python"], ids=str
)
def test_clients_of_the_page_work_as_printed(reader: Reader, block: Block) -> None:
    """Hugging Face's client and OpenAI's."""
    (reader.place(block.page) / "client.py").write_text(
        block.text.replace("localhost:8080", f"127.0.0.1:{reader.up.gateway.rpartition(':')[2]}")
    )
    code, printed = reader.types(block.page, "python client.py")
    assert 0 == code, printed
    assert printed.strip()
