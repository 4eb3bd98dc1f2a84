"""`triton-gateway up --demo` as a user meets it: one command, a real model, a real Triton, the stock CLI beside it.

The tests of this file share one running stack and follow its life: cold start, use, changes, accidents, stop, warm
start. Each leaves it serving.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from deploy.laptop.demo.minilm import packaged_model
from tests.callers import Callers
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SENTENCE = "A man is playing the guitar on stage."
GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
PARTS = {"controlplane", "triton", "sync", "gateway"}


def command() -> list[str]:
    """The installed command, or the same from the source tree when only the dependencies are installed."""
    installed = shutil.which("triton-gateway", path=str(BIN))
    return [installed] if installed else [sys.executable, "-P", "-m", "deploy.cli.main"]


def clean_environment(home: Path) -> dict[str, str]:
    """A user's environment with an empty home directory and no word about ClearML."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CLEARML_", "TRAINS_", "TRITON_GATEWAY_", "XDG_"))}
    home.mkdir(exist_ok=True)
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


class Up:
    """One `triton-gateway up` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.home = folder / "home"
        self.out, self.err = folder / "out", folder / "err"
        argv = [*command(), "up", "--state-dir", str(self.state), *arguments]
        if not any(a == "--port" for a in arguments):
            argv += ["--port", "0", "--controlplane-port", "0"]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                env=env or clean_environment(self.home), start_new_session=True,
            )  # fmt: skip

    def printed(self) -> str:
        return self.out.read_text()

    def says(self, pattern: str, *, after: int = 0) -> bool:
        return re.search(pattern, self.printed()[after:]) is not None

    def wait_ready(self) -> None:
        until(lambda: self.says(r"ready in [\d.]+ s") or self.process.poll() is not None)
        assert self.process.poll() is None, self.printed() + self.err.read_text()

    @property
    def gateway(self) -> str:
        found = re.search(r"gateway {2,}(http://[\d.:]+)/serve/", self.printed())
        assert found is not None
        return found[1]

    def children(self) -> dict[str, int]:
        """Process id of each part."""
        found: dict[str, int] = {}
        for line in self.processes():
            part = re.search(r"-m deploy\.cli\.main (controlplane|sync|serve) |bin/(triton)server --", f"{line} ")
            if part is not None:
                # the first has started the others, which are called like it until they run their own program
                found.setdefault((part[1] or part[2]).replace("serve", "gateway"), int(line.split()[0]))
        return found

    def exported(self) -> dict[str, str]:
        """The environment `up` offers for the CLI."""
        shell = subprocess.run(
            ["bash", "-c", f"env -i bash -c 'set -a; . {self.state}/env; env'"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return dict(line.split("=", 1) for line in shell.stdout.splitlines() if line.startswith("CLEARML_"))

    def processes(self) -> list[str]:
        """Every living process that has to do with this state directory."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line, place = " ".join(process.cmdline()), str(self.state)
                about = (line, process.cwd(), *process.environ().values())
                if process.pid != os.getpid() and process.status() not in GONE and any(place in one for one in about):
                    found.append(f"{process.pid} {line}")
        return found

    def server(self) -> int:
        """The process id of the embedded tritonserver; a program that it starts is called like it for a moment."""

        def alone() -> int | None:
            found = [p for p in self.processes() if re.search(r"bin/tritonserver --model-repository", p)]
            return int(found[0].split()[0]) if len(found) == 1 else None

        pid: int = until(alone)
        return pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=LIMIT_S)


def post(url: str, body: Any) -> Any:
    """One request over REST. Raises `urllib.error.HTTPError` for any refusal."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=LIMIT_S) as reply:
        return json.loads(reply.read())


def embed(up: Up, text: str, endpoint: str = "minilm") -> list[float]:
    """The embedding of one text."""
    vector: list[float] = post(f"{up.gateway}/serve/{endpoint}", {"text": text})["embedding"]
    return vector


def is_served(up: Up, endpoint: str) -> bool:
    """Whether one request is answered."""
    try:
        return len(embed(up, "hello", endpoint)) == 384
    except OSError:
        return False


def steady(up: Up) -> Callers:
    """A steady stream of requests; every one that is not answered with a vector is a failure."""
    return Callers(lambda number: "" if len(embed(up, f"request {number}")) == 384 else "no vector")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The stack, started cold, once for this file."""
    running = Up(tmp_path_factory.mktemp("up"), "--demo")
    try:
        running.wait_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


def stock(up: Up, *arguments: str) -> str:
    """Run the stock CLI with the environment `up` printed, as another person's shell would."""
    exported = up.exported()
    done = subprocess.run(
        [BIN / "clearml-serving", "--id", exported["CLEARML_SERVING_TASK_ID"], *arguments],
        capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=up.folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(up.folder / "cli-home"), **exported},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TENSORS = (
    "--input-name", "input_ids", "attention_mask", "token_type_ids", "--input-type", "int64", "int64", "int64",
    "--input-size", "[-1, -1]", "[-1, -1]", "[-1, -1]",
    "--output-name", "sentence_embedding", "--output-type", "float32", "--output-size", "[-1, 384]",
)  # fmt: skip


def test_cold_start_ends_with_what_to_do_next(up: Up) -> None:
    """The terminal shows a curl to paste, where the CLI's keys are and every address."""
    text = up.printed()
    secret = json.loads((up.state / "controlplane" / "credentials.json").read_text())["secret_key"]
    shown = [text, *(log.read_text(errors="replace") for log in (up.state / "logs").iterdir())]
    assert not any(secret in one for one in shown)
    for said in ("$ curl -s http://127.0.0.1:", "/docs", "/metrics",
                 "status page", "Triton", f"source {up.state}/env"):  # fmt: skip
        assert said in text
    assert "minilm/1 is served (sentence-embeddings)" in up.err.read_text()


def test_vectors_equal_pytorch_with_the_same_weights(up: Up) -> None:
    """Through tokenizer, batches of every length, Triton and gateway nothing moves by more than 1e-4."""
    source = packaged_model()
    texts = [SENTENCE, "hi", *(f"{number} {SENTENCE} " * number for number in range(1, 12, 3))]
    tokenizer, vectors = AutoTokenizer.from_pretrained(source), []
    model = AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    for text in texts:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        vectors.append((hidden / hidden.norm()).tolist())
    together = post(f"{up.gateway}/serve/minilm", {"text": texts})["embeddings"]
    for text, vector, beside in zip(texts, vectors, together, strict=True):
        assert embed(up, text) == pytest.approx(vector, abs=1e-4)
        assert beside == pytest.approx(vector, abs=1e-4)


def test_stock_cli_adds_and_removes_an_endpoint_without_a_failed_request(up: Up) -> None:
    """A person with nothing but clearml-serving changes what is served while others are being served."""
    bundle = next((up.state / "demo").glob("minilm-*"))
    with steady(up) as load:
        output = stock(
            up, "model", "upload", "--name", "second", "--project", "e2e", "--path", str(bundle),
            "--framework", "onnx", "--publish",
        )  # fmt: skip
        model_id = re.findall(r"new Model ID=([0-9a-f]{32})", output)[-1]
        stock(up, "model", "add", "--engine", "triton", "--endpoint", "second", "--version", "1",
              "--model-id", model_id, *TENSORS)  # fmt: skip
        until(lambda: is_served(up, "second/1"))
        assert embed(up, SENTENCE, "second/1") == pytest.approx(embed(up, SENTENCE), abs=1e-6)
        stock(up, "model", "remove", "--endpoint", "second/1")
        until(lambda: not is_served(up, "second/1"))
        with pytest.raises(urllib.error.HTTPError) as caught:
            embed(up, SENTENCE, "second/1")
        caught.value.close()
        assert caught.value.code == 404
        until(lambda: load.asked > 50)
    assert load.failures == []


@pytest.mark.parametrize("part", ["controlplane", "sync"])
def test_requests_do_not_notice_the_loss_of_the_control_side(up: Up, part: str) -> None:
    """The control plane and model sync come back by themselves; requests in between are answered."""
    before, seen = up.children()[part], len(up.printed())
    with steady(up) as load:
        os.kill(before, signal.SIGKILL)
        until(lambda: up.says(f"{part} is back", after=seen))
    assert load.failures == []
    assert up.says(rf"{part} died \(killed by SIGKILL\).*; restarting", after=seen)
    assert up.children()[part] != before


def test_killed_triton_is_restarted_and_loaded_again(up: Up) -> None:
    """While Triton is away answers are 503 and nothing else; then everything is served again without help."""
    seen, server = len(up.printed()), up.server()
    os.kill(server, signal.SIGKILL)
    codes = set()

    def answers() -> bool:
        try:
            embed(up, SENTENCE)
        except urllib.error.HTTPError as error:
            codes.add(error.code)
            error.close()
            return False
        return up.server() != server if up.says("triton is back", after=seen) else False

    until(answers)
    assert codes <= {503}
    assert up.says("triton died", after=seen)
    key, line = (up.state / "triton" / "key").read_bytes().strip(), Path(f"/proc/{up.server()}/cmdline")
    assert (False, True) == (key in line.read_bytes(), b"*" * len(key) in line.read_bytes())


def test_stop_is_ordered_and_leaves_nothing(up: Up) -> None:
    """SIGTERM: exit code 0, gateway first and control plane last, no process, no half-written file, home untouched."""
    seen = len(up.printed())
    groups = list(up.children().values())
    assert up.stop() == 0
    order = re.findall(r"(\w+) stopped \(", up.printed()[seen:])
    assert order == ["gateway", "sync", "triton", "controlplane"]
    assert up.processes() == []
    for group in groups:
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)
    unfinished = [
        p for p in up.state.rglob("*") if p.is_file() and re.search(r"\.(part|tmp)\b|staging/(?!lock$)", str(p))
    ]
    assert unfinished == []
    assert list(up.state.glob("tmp/*")) == []
    assert list(up.home.iterdir()) == []
    assert not list(Path("/dev/shm").glob((up.state / "triton" / "shm-prefix").read_text().strip() + "*"))


@pytest.mark.long
def test_second_start_is_warm_and_a_kill_leaves_nothing(up: Up) -> None:
    """Nothing is exported or registered again; and SIGKILL of `up` itself leaves no process behind."""
    if up.process.poll() is None:
        up.stop()
    warm = Up(up.folder, "--demo")
    try:
        warm.wait_ready()
        assert not warm.says("model upload|clearml-serving create")
        assert "minilm/1 already serves exactly these files" in warm.err.read_text()
        assert set(warm.children()) == PARTS
        assert len(embed(warm, SENTENCE)) == 384
        warm.process.kill()
        warm.process.wait()
        until(lambda: warm.processes() == [])
    finally:
        if warm.process.poll() is None:
            warm.stop()
    again = Up(up.folder, "--demo")
    try:
        again.wait_ready()
        assert len(embed(again, SENTENCE)) == 384
        assert again.stop(signal.SIGINT) == 0
    finally:
        if again.process.poll() is None:
            again.stop()
    assert again.processes() == []
