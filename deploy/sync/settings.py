"""Settings of a model sync, and its back-off. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from deploy.sync.client import Tls
from deploy.sync.model_folder.execution import Tuning, available_cores, tuning_for
from deploy.sync.model_folder.layout import Engine
from gateway import pools


@dataclass(frozen=True, slots=True)
class Grace:
    """How long a model stays that nothing needs: ``settle_s``, then until nothing has called it for ``idle_s``.

    A gateway that restarts calls nothing meanwhile, and finds its last good version only if that is still loaded. One
    of an endpoint that has moved to other Tritons stays for ``move_s``: they may take minutes to load it.
    """

    settle_s: float = 30.0
    idle_s: float = 60.0
    move_s: float = 600.0


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Settings of a model sync; times in seconds."""

    state_dir: Path
    repository: Path
    triton_grpc: str
    engine: Engine = "native"
    pools: frozenset[str] = pools.followed("")
    """The pools of its Triton. Endpoints of other pools are not loaded; ``*``: all pools."""
    triton_key_file: Path | None = None
    """File with the key of Triton's control APIs, if Triton was started with one."""
    triton_tls: Tls | None = None
    """TLS to Triton, if it has been configured."""
    poll_s: float = 2.0
    """Seconds between looks at the serving Task."""
    observe_s: float = 1.0
    """Seconds between looks at Triton, independent of ``poll_s``: a restarted Triton is empty and must not wait."""
    records_s: float = 30.0
    """Seconds after which model records are read again although the serving Task did not change."""
    retry_first_s: float = 2.0
    retry_max_s: float = 300.0
    load_timeout_s: float = 300.0
    downloads: int = 4
    grace: Grace = field(default_factory=Grace)
    tuning: Tuning = field(default_factory=lambda: tuning_for(available_cores()))

    @property
    def heartbeat(self) -> Path:
        """A file that is touched after each round, for supervisors that have no port to ask."""
        return self.state_dir / "sync-alive"

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after ``failures`` failures in a row."""
        return float(min(self.retry_max_s, self.retry_first_s * 2 ** min(failures - 1, 30)))
