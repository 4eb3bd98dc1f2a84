"""``python -m deploy.laptop.demo.seed``: create a Task that serves the small model in an empty registry, then end.

Uses the stock ``clearml-serving`` CLI as a user would: two versions of the endpoint ``demo``, a canary of 80 to 20
between them, and three declared variables. Our own command mirrors 5 % of the requests to version 2. A serving Task
that serves anything else is not changed, so this may run at every start. Steps that an interrupted run has left out are
added.

With ``--stay`` it retries until it is done, and then waits as a tiny process until it is ended. A container beside a
server needs that, because one that exits looks like a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.laptop import registry_process
from deploy.tools.clearml_serving import ClearMLServing, Tensor, model_add
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused, line_of

ENDPOINT = "demo"
VERSIONS = ("1", "2")
MODEL = Path(__file__).parent / "words_model"
AGAIN_S = 10.0
_STAY = (
    "import signal; ends = {signal.SIGTERM, signal.SIGINT}; signal.pthread_sigmask(signal.SIG_BLOCK, ends);"
    "print('waits until it is ended', flush=True); signal.sigwait(ends)"
)

_INPUTS = tuple(Tensor(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask"))
_OUTPUTS = (Tensor("logits", "float32", (-1, 2)),)


def existing() -> tuple[str, frozenset[str]]:
    """Return the id and endpoints of the serving Task, empty if there is none."""
    try:
        task, endpoints = registry_process.read(os.environ.get("CLEARML_SERVING_TASK_ID", ""))
    except RegistryRefused as error:
        if "no serving service" not in error.message:
            raise
        return "", frozenset()
    return task, frozenset(endpoints)


def left_to_do(endpoints: frozenset[str]) -> list[str]:
    """Return the versions to add; none if there are endpoints of somebody else, or all of ours."""
    ours = {f"{ENDPOINT}/{version}": version for version in VERSIONS}
    return [] if endpoints - ours.keys() else [version for url, version in ours.items() if url not in endpoints]


async def register(cli: ClearMLServing, task: str, versions: Sequence[str]) -> str:
    """Create the serving Task if there is none, and its endpoints. Return its id."""
    task = task or await cli.create_service("triton-gateway")
    model = registry_process.register(task, MODEL, "triton-gateway demo", "words") if versions else ""
    for version in versions:
        said = ["gateway.response_cache=1000"] if version == "2" else []  # docs/settings.md
        await cli.run("--id", task, *model_add(f"{ENDPOINT}/{version}", model, _INPUTS, _OUTPUTS, said))
    await cli.run(
        "--id", task, "model", "canary", "--endpoint", ENDPOINT, "--weights", "0.8", "0.2",
        "--input-endpoints", f"{ENDPOINT}/1", f"{ENDPOINT}/2",
    )  # fmt: skip
    await cli.run(
        "--id", task, "metrics", "add", "--endpoint", f"{ENDPOINT}/*", "--variable-scalar",
        "score=0.5,0.6,0.7,0.8,0.9", "--variable-enum", "label=POSITIVE,NEGATIVE", "--variable-value", "tokens",
    )  # fmt: skip
    return task


def mirror(task: str) -> None:
    """Mirror 5 % of the requests to version 2, with our own command: the stock CLI has none."""
    command = [sys.executable, "-m", "deploy.cli.main", "canary", "shadow", "--endpoint", ENDPOINT, "--to", "2"]
    command += ["--percent", "5", "--serving-task-id", task]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise DeployError(f"the shadow traffic could not be configured: {done.stderr.strip()[-300:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.laptop.demo.seed", description=__doc__)
    parser.add_argument("--stay", action="store_true", help="try until it is done, then wait until it is ended")
    stay = parser.parse_args(argv).stay
    while (code := seeded()) and stay:
        time.sleep(AGAIN_S)
    if stay:
        sys.stdout.flush()
        # replace this process by a tiny one, to free the memory of the imported ClearML SDK
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _STAY])  # noqa: S606 - itself
    return code


def seeded() -> int:
    """Create the missing parts once. Return the exit code."""
    try:
        task, endpoints = existing()
        versions = left_to_do(endpoints)
        if task and not versions:
            print(f"serving Task {task} serves {', '.join(sorted(endpoints))}: nothing to do")  # noqa: T201 - the container's log
            return 0
        with tempfile.TemporaryDirectory() as folder:
            cli = ClearMLServing(env=os.environ, log=Path(folder) / "clearml-serving.log")
            task = asyncio.run(register(cli, task, versions))
        mirror(task)
    except (DeployError, GatewayError) as error:
        print(f"setup: {line_of(error)}", file=sys.stderr)  # noqa: T201 - as above
        return 1
    print(f"serving Task {task} serves {ENDPOINT}/1 and {ENDPOINT}/2, 80 to 20 behind {ENDPOINT}")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main())
