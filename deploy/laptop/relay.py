"""Runs one of our own commands in a separate process, and shows its progress as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from deploy.tools import processes
from deploy.tools.errors import DeployError

_ENDS_WITHIN_S: Final = 60.0
"""Seconds that an interrupted command gets to undo its changes in the registry."""
_LETS_GO_WITHIN_S: Final = 5.0
"""Seconds until a command whose outputs are closed, or that was killed, has ended."""
NOTHING: Final = "stopped: nothing was registered"
"""Said after Ctrl-C."""


class Screen(Protocol):
    """Shows progress."""

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def show(self, text: str) -> None:
        """Show a line unchanged, so that it can be copied."""
        ...

    def live(self, text: str, *, topic: str = "") -> None:
        """Show the current work; the next line replaces it."""
        ...


@contextlib.contextmanager
def nothing_registered(screen: Screen) -> Iterator[None]:
    """Say after Ctrl-C that nothing was registered yet."""
    try:
        yield
    except KeyboardInterrupt:
        screen.say(NOTHING)
        raise


async def relayed(argv: Sequence[str], env: Mapping[str, str], screen: Screen) -> str:
    """Run a command that shows progress with a ``Terminal`` on stderr; return its stdout.

    Raises ``DeployError`` with its last line if it fails. On cancellation the command is interrupted, and shown and
    awaited until it ends. A second cancellation kills it. The command is also interrupted when this process is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *processes.leader_of(argv, signal.SIGINT), env={**env, "PYTHONIOENCODING": "utf-8"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True, limit=1 << 24,
    )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    assert process.stderr is not None  # noqa: S101 - as above
    reading = asyncio.create_task(process.stdout.read())
    showing = asyncio.create_task(_shown(process.stderr, screen))
    try:
        await asyncio.wait({reading, showing})
        code = await process.wait()
        output, last = reading.result().decode(errors="replace"), showing.result()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await asyncio.wait({reading, showing}, timeout=_ENDS_WITHIN_S)
        raise
    finally:
        if not (reading.done() and showing.done()):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LETS_GO_WITHIN_S):
                    await process.wait()
        reading.cancel()
        showing.cancel()
    if code != 0:
        raise DeployError(last.removeprefix("triton-gateway: ") or f"{argv[-1]} ended with exit code {code}")
    return output


async def _shown(stderr: asyncio.StreamReader, screen: Screen) -> str:
    """Show the progress as it comes, and return the last line."""
    last = ""
    async for raw in stderr:
        line = raw.decode(errors="replace").rpartition("\r")[2].rstrip()
        last = line or last
        text = line.partition("] ")[2] if line.startswith("[") else ""
        if text.endswith(" …"):
            screen.live(text.removesuffix(" …"), topic=text)
        elif text:
            screen.say(text)
        elif line.startswith("$ "):
            screen.show(line)
    return last
