"""Everything a model sync needs to know, and how long it waits before it tries again. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from deploy.modelsync.members import read_pools
from deploy.modelsync.model_folder.cores import available_cores, tuning_for
from deploy.modelsync.model_folder.layout import Engine
from deploy.modelsync.model_folder.model_config import Tuning
from deploy.modelsync.plan import Grace


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Everything a model sync needs to know; times in seconds."""

    state_dir: Path
    repository: Path
    triton_grpc: str
    engine: Engine = "native"
    members: str = ""
    """Address of all Tritons of the pool, among which models on some of them are shared out; empty: on all of them."""
    member: str = ""
    """This one's host among them."""
    pools: frozenset[str] = read_pools("")
    """The pools its Triton belongs to: endpoints of others are not loaded; ``*``: of all."""
    triton_key_file: Path | None = None
    """Holds the key of Triton's control APIs, where it was started with one."""
    cache_bytes: int = 20 << 30
    """Size above which downloads that nobody needs are deleted; 0: never."""
    unpacked_bytes: int = 64 << 30
    """Most that one model's archive may hold unpacked."""
    cache_dir: Path | None = None
    """Shared by all processes of this machine; ``state_dir/cache`` when not given."""
    poll_s: float = 2.0
    """How often the serving Task is looked at."""
    observe_s: float = 1.0
    """How often Triton is looked at, whatever ``poll_s``: a restarted Triton is empty and must not wait."""
    records_s: float = 30.0
    """How often model records are read again although the serving Task did not change."""
    retry_first_s: float = 2.0
    retry_most_s: float = 300.0
    load_timeout_s: float = 300.0
    downloads: int = 4
    grace: Grace = field(default_factory=Grace)
    tuning: Tuning = field(default_factory=lambda: tuning_for(available_cores()))

    @property
    def status_path(self) -> Path:
        """The file that tells what sync did: read by the gateway's status page and by ``doctor``."""
        return self.state_dir / "sync-status.json"

    def delay(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row."""
        return float(min(self.retry_most_s, self.retry_first_s * 2 ** min(failures - 1, 30)))


@dataclass(slots=True)
class Retry:
    """Failures in a row of one thing, and when it may be tried again."""

    count: int = 0
    at: float = 0.0
    is_suspect: bool = False
    """Triton ended while it loaded this model: perhaps because of it."""
