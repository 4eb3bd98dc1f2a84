"""Runs one of our own commands in a process of its own and shows what it says as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from deploy.tools.errors import DeployError

_ENDS_WITHIN_S: Final = 60.0
"""What a command may take to take back what it has begun; it asks a registry."""


class Screen(Protocol):
    """Where progress goes."""

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def show(self, text: str) -> None:
        """Show a line as it is, fit to be copied."""
        ...

    def live(self, text: str, *, topic: str = "") -> None:
        """Show what is being done; replaced by the next line."""
        ...


async def relayed(argv: Sequence[str], env: Mapping[str, str], screen: Screen) -> str:
    """Run a command whose progress is a ``Terminal``'s on standard error; return what it prints on standard output.

    Raises ``DeployError`` with its own last line when it fails. Cancelled, it is interrupted and waited for.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, env=dict(env), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, start_new_session=True, limit=1 << 24,
    )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    assert process.stderr is not None  # noqa: S101 - as above
    reading = asyncio.create_task(process.stdout.read())
    last = ""
    try:
        async for raw in process.stderr:
            line = raw.decode(errors="replace").rpartition("\r")[2].rstrip()
            last = line or last
            text = line.partition("] ")[2] if line.startswith("[") else ""
            if text.endswith(" …"):
                screen.live(text.removesuffix(" …"), topic=text)
            elif text:
                screen.say(text)
            elif line.startswith("$ "):
                screen.show(line)
        code = await process.wait()
        output = (await reading).decode(errors="replace")
    except BaseException:
        reading.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await process.communicate()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    if code != 0:
        raise DeployError(last.removeprefix("triton-gateway: ") or f"{argv[-1]} ended with {code}")
    return output
