"""``python -m deploy.laptop.demo.seed``: create a Task that serves the small model in an empty registry, then end.

Uses the stock ``clearml-serving`` CLI as a user would: two versions of the endpoint ``demo``, a canary of 80 to 20
between them, and three declared variables. 5 % of the requests are mirrored to version 2. A serving Task
that serves anything else is not changed, so this may run at every start. Steps that an interrupted run has left out are
added.

With ``--stay`` it retries until it is done, and then waits as a tiny process until it is ended. A container beside a
server needs that, because one that exits looks like a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.controller.rollouts import record
from deploy.tools.clearml_serving import ClearMLServing, Tensor, model_add
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused, line_of
from gateway.registry import ClearMLRegistry, Upload

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


def registry() -> ClearMLRegistry | None:
    """Return the registry of the serving Task; None if there is no Task."""
    try:
        store = ClearMLRegistry(os.environ.get("CLEARML_SERVING_TASK_ID", ""))
        store.followed()
    except RegistryRefused as error:
        if "no serving service" not in error.message:
            raise
        return None
    return store


def left_to_do(endpoints: frozenset[str]) -> list[str]:
    """Return the versions to add; none if there are endpoints of somebody else, or all of ours."""
    ours = {f"{ENDPOINT}/{version}": version for version in VERSIONS}
    return [] if endpoints - ours.keys() else [version for url, version in ours.items() if url not in endpoints]


async def add(cli: ClearMLServing, task: str, model: str, versions: Sequence[str]) -> None:
    """Add the endpoint's versions, its canary and its variables with the stock CLI."""
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
        with tempfile.TemporaryDirectory() as folder:
            cli = ClearMLServing(env=os.environ, log=Path(folder) / "clearml-serving.log")
            store = registry()
            if store is None:
                store = ClearMLRegistry(asyncio.run(cli.create_service("triton-gateway")))
            task, endpoints = store.followed(), store.spec().endpoints
            versions = left_to_do(frozenset(endpoints))
            if endpoints and not versions:
                print(f"serving Task {task} serves {', '.join(sorted(endpoints))}: nothing to do")  # noqa: T201 - the container's log
                return 0
            model = store.register(Upload(MODEL, "triton-gateway demo", "words", "ONNX"))
            asyncio.run(add(cli, task, model, versions))
        shadow = record.shadow_of(store.spec(), ENDPOINT, f"{ENDPOINT}/2", 5.0, 0.1, "demo")
        store.write({}, [shadow])  # the stock CLI has no shadows
    except (DeployError, GatewayError) as error:
        print(f"setup: {line_of(error)}", file=sys.stderr)  # noqa: T201 - as above
        return 1
    print(f"serving Task {task} serves {ENDPOINT}/1 and {ENDPOINT}/2, 80 to 20 behind {ENDPOINT}")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main())
