"""Programs without their imports: a process that has made them forks once for every call.

A call of the stock tool costs over a second of CPU time, most of it spent on importing ``clearml`` and on parsing the
configuration files of that package; the tests make many. ``tool()`` is given to Python in place of ``PROGRAM``, and
``program()`` in place of ``-c`` and code of a test: a small program that hands its arguments, folder, environment and
files to the process here, and ends as the fork ends. A signal is passed on; if the small program is killed, so is the
fork. What the tool is told by a variable that its imports may read is told to the true program.
"""

from __future__ import annotations

import atexit
import functools
import gc
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.tools.clearml_serving import PROGRAM

PRELOAD: Final = """
import sys
sys.modules["torch"] = None
import clearml_serving.serving.model_request_processor
import deploy.controller.auto_update, gateway.registry.clearml
"""

KNOWN: Final = {
    f"CLEARML_{name}"
    for name in ("API_ACCESS_KEY", "API_HOST", "API_SECRET_KEY", "BKG_THREAD_REPORT", "CACHE_DIR", "CONFIG_FILE",
                 "FILES_HOST", "SERVING_TASK_ID", "SUPPRESS_UPDATE_MESSAGE", "WEB_HOST")
}  # fmt: skip
"""Variables that a call may have: no import reads them."""

RELAY: Final = """
import _socket, marshal, os, signal, sys
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect(sys.argv[1].encode().replace(b"@", b"\\0", 1))
call = marshal.dumps((sys.argv[2:], os.getcwd(), dict(os.environ)))
files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
server.sendmsg([len(call).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
server.sendall(call)
ended = server.recv(4)
if not ended:
    sys.exit("the process that calls are forked from is gone")
code = int.from_bytes(ended, "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def tool() -> tuple[str, ...]:
    """What Python is given to be the stock tool."""
    return program(PROGRAM[1])


def program(code: str) -> tuple[str, ...]:
    """What Python is given to run this: the way to a fork, or where processes cannot be forked like that, ``-c``."""
    return ("-S", "-E", "-c", RELAY, _address(), code) if sys.platform == "linux" else ("-c", code)


@functools.cache
def _address() -> str:
    """Of this process's server, which is started once and ends with it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True, cwd=_ROOT, env=_without_clearml(),
    )  # fmt: skip
    atexit.register(server.communicate)
    assert server.stdout is not None
    return server.stdout.readline().strip()


_ROOT: Final = Path(__file__).parents[1]


def _without_clearml() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("CLEARML_", "TRAINS_"))}


@dataclass(frozen=True, slots=True)
class _Call:
    argv: list[str]
    folder: str
    environment: dict[str, str]

    def run(self) -> None:
        """Be the program. Only in a process of its own."""
        os.chdir(self.folder)
        told = {name for name in self.environment if name.startswith(("CLEARML_", "TRAINS_"))}
        if not {"CLEARML_CONFIG_FILE", "CLEARML_CACHE_DIR"} <= told <= KNOWN:
            os.execve(sys.executable, [sys.executable, "-c", *self.argv], self.environment)
        os.environ.clear()
        os.environ.update(self.environment)
        tempfile.tempdir = None
        code, *arguments = self.argv
        sys.argv[:] = ["-c", *arguments]
        sys.path[:0] = ["", *filter(None, self.environment.get("PYTHONPATH", "").split(os.pathsep))]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _parsed_once() -> None:
    """The package's own configuration files are parsed here; a fork takes what was made of them."""
    from clearml import backend_api, config
    from clearml.utilities.pyhocon import ConfigFactory

    parse = ConfigFactory.parse_file
    folders = [Path(config.__file__).parent / "default", Path(backend_api.__file__).parent / "config" / "default"]
    parsed = {str(path): parse(str(path)) for folder in folders for path in folder.glob("*.conf")}
    ConfigFactory.parse_file = lambda path, *args, **named: parsed.pop(path, None) or parse(path, *args, **named)


def _serve() -> _Call | None:
    """Fork for every call: in the fork it is returned, here nothing, once whoever started this process is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0triton-gateway-tests-{os.getpid()}")
        listener.listen()
        print(f"@triton-gateway-tests-{os.getpid()}", flush=True)
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            with listener.accept()[0] as caller:
                if os.fork():
                    continue
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                call, files = _received(caller)
                pid = os.fork()
                for at, file in enumerate(files):
                    if not pid:
                        os.dup2(file, at)
                    os.close(file)
                if not pid:
                    return call
                _attend(pid, caller)
            os._exit(0)
    return None


def _received(caller: socket.socket) -> tuple[_Call, list[int]]:
    size, files, _, _ = socket.recv_fds(caller, 4, 3)
    with caller.makefile("rb") as stream:
        return _Call(*marshal.loads(stream.read(int.from_bytes(size, "big")))), files


def _attend(pid: int, caller: socket.socket) -> None:
    """Pass signals on, and tell how the process ended."""
    end = os.pidfd_open(pid)
    while end not in select.select([caller, end], [], [])[0]:
        for number in caller.recv(16) or [signal.SIGKILL]:
            os.kill(pid, number)
    caller.sendall(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]).to_bytes(4, "big", signed=True))


if __name__ == "__main__":
    exec(PRELOAD)
    _parsed_once()
    gc.freeze()
    if call := _serve():
        call.run()
