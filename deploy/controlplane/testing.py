"""A control plane of one's own for tests: a real process on loopback with a free port.

Called by integration tests of everything that talks to ClearML. Never used by the product.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.controlplane.credentials import Credentials, environment
from deploy.controlplane.server import read_endpoint

_PROGRAM = (
    "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[3]);"
    "from deploy.controlplane import ControlPlaneSettings, run;"
    "sys.exit(run(ControlPlaneSettings(state_dir=Path(sys.argv[1]), port=int(sys.argv[2]))))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningControlPlane:
    """A started control plane and what a client needs to reach it."""

    url: str
    state_dir: Path
    process: "subprocess.Popen[bytes]"

    @property
    def credentials(self) -> Credentials:
        """The generated keys."""
        return Credentials.load(self.state_dir)

    def client_environment(self, base: Mapping[str, str], private_dir: Path) -> dict[str, str]:
        """`base` (say `os.environ`) for a client of this server that sees nothing of its user's configuration."""
        inherited = {key: value for key, value in base.items() if not key.startswith(("CLEARML_", "TRAINS_"))}
        return {
            **inherited,
            **environment(self.credentials, self.url),
            "HOME": str(private_dir),
            "CLEARML_CONFIG_FILE": str(private_dir / "none.conf"),
            "CLEARML_CACHE_DIR": str(private_dir / "cache"),
        }


@contextmanager
def control_plane(state_dir: Path, *, port: int = 0, timeout_s: float = 30.0) -> Iterator[RunningControlPlane]:
    """A started control plane; stopped when the block ends, killed if it does not stop.

    Raises:
        RuntimeError: it did not start in time; its own message is on stderr.
    """
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(state_dir), str(port), str(root)])
    try:
        deadline = time.monotonic() + timeout_s
        while (endpoint := read_endpoint(state_dir)) is None or endpoint["pid"] != str(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the control plane did not start (exit code {process.returncode})")
            time.sleep(0.02)
        yield RunningControlPlane(url=endpoint["api"], state_dir=state_dir, process=process)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
