"""Triton's admin calls over gRPC: live, index, load, unload, statistics. Each has a time limit.

Model sync and the launcher call it, from any thread. It translates every foreign exception into ``gateway.errors`` and
never retries: ``plan.py`` decides when to try again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from gateway import errors, triton

Tls = triton.tls.TritonTls
"""Files and name for TLS to Triton."""

ModelState = Literal["absent", "loading", "ready", "unloading", "failed"]

_STATES: Mapping[str, ModelState] = {
    "READY": "ready", "LOADING": "loading", "UNLOADING": "unloading", "UNAVAILABLE": "failed",
}  # fmt: skip
_CHANNEL = [
    # gRPC's own reconnect delay grows to two minutes, far longer than Triton takes to restart.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
]


class AdminClient:
    """The admin side of one Triton at ``address`` (``host:port``).

    ``key_file`` holds the key of its control APIs. It is read at each call, and may be missing if Triton needs no key.
    Calls raise ``BackendRefused`` if Triton needs a key, or another one. With ``tls``, or an address ``grpcs://…``, the
    connection uses TLS; files that were replaced are used for the next call.
    """

    def __init__(
        self, address: str, *, key_file: Path | None = None, timeout_s: float = 10.0, load_timeout_s: float = 300.0,
        tls: Tls | None = None,
    ) -> None:  # fmt: skip
        self._address = address
        self._key_file = key_file
        self._timeout = timeout_s
        self._load_timeout = load_timeout_s
        self._target = address.removeprefix("grpcs://").removeprefix("grpc://")
        self._tls = triton.tls.for_address(address, tls)
        self._lock = threading.Lock()
        self._is_closed = False
        self._files: tuple[float, ...] = ()
        self._open: Any = None

    @property
    def _client(self) -> Any:
        """The connection; with TLS a new one if its files have changed. Raises ``BackendRefused`` for bad files."""
        with self._lock:
            try:
                files = () if self._tls is None else self._tls.changed()
                if self._open is None or (files != self._files and not self._is_closed):
                    # Calls in flight hold the old connection, which is closed when the last of them has ended.
                    self._open, self._files = _connect(self._target, self._tls), files
            except OSError as error:
                raise errors.BackendRefused(
                    f"no TLS to Triton at {self._address}: {error}",
                    hint="correct the files in TRITON_GATEWAY_TRITON_TLS",
                ) from error
            return self._open

    def is_live(self, timeout_s: float = 5.0) -> bool:
        """Return True if the server answers; never raises."""
        try:
            return bool(self._client.is_server_live(client_timeout=timeout_s))
        except (InferenceServerException, errors.GatewayError):
            return False

    def is_ready(self, name: str) -> bool:
        """Return True if the model can be called now; raises ``BackendUnavailable`` if Triton does not answer."""
        return bool(self._ask("is_model_ready", name))

    def index(self) -> dict[str, ModelState]:
        """Return every model that Triton knows. For a model with several versions, the best state counts."""
        reply = self._ask("get_model_repository_index", headers=self._headers())
        found: dict[str, ModelState] = {}
        for model in reply.models:
            # A model that was never loaded, or was unloaded on request, is reported as absent.
            state = _STATES.get(model.state, "absent")
            if state == "failed" and model.reason in ("unloaded", ""):
                state = "absent"
            if found.get(model.name) != "ready":
                found[model.name] = state
        return found

    def load(self, name: str) -> None:
        """Load a model; return when Triton has loaded it."""
        self._ask("load_model", name, headers=self._headers())

    def unload(self, name: str) -> None:
        """Start to unload a model. A model that is not loaded is not an error."""
        self._ask("unload_model", name, headers=self._headers())

    def last_inference(self) -> dict[str, float]:
        """Return each model's last inference in seconds since the epoch; 0 if there was none."""
        reply = self._ask("get_inference_statistics")
        latest: dict[str, float] = {}
        for stats in reply.model_stats:
            latest[stats.name] = max(latest.get(stats.name, 0.0), stats.last_inference / 1000)
        return latest

    def version(self) -> str:
        """Return the server's version, empty if it does not report one. Needs no key."""
        try:
            return str(self._ask("get_server_metadata").version)
        except errors.GatewayError:
            return ""

    def close(self) -> None:
        """Release the connection."""
        with self._lock:
            self._is_closed = True
            if self._open is not None:
                self._open.close()

    def _headers(self) -> dict[str, str]:
        try:
            key = triton.key.read_key(self._key_file or "")
        except ValueError as error:
            raise errors.BackendRefused(str(error)) from error
        return {triton.key.GRPC_HEADER: key} if key else {}

    def _ask(self, method: str, *model: str, **more: Any) -> Any:
        """Call a method of tritonclient; ``load_model`` may take as long as a load."""
        is_load = method == "load_model"
        timeout = self._load_timeout if is_load else self._timeout
        try:
            return getattr(self._client, method)(*model, client_timeout=timeout, **more)
        except InferenceServerException as error:
            raise self._translate(error, loading=model[0] if is_load else "") from error

    def _translate(self, error: InferenceServerException, *, loading: str = "") -> errors.GatewayError:
        status = str(error.status() or "").removeprefix("StatusCode.")
        text = _first_line(error.message() or str(error))
        if triton.key.is_refusal(text):
            return self._wants_key()
        if "not allowed" in text and "load" in text:
            return errors.BackendRefused(
                f"Triton at {self._address} does not load models on request: {text}",
                hint="start it with --model-control-mode=explicit",
            )
        if status == "DEADLINE_EXCEEDED":
            return errors.DeadlineExceeded(f"Triton at {self._address} did not answer in time" + (
                f": {loading} was not loaded within {self._load_timeout:g} s" if loading else ""))  # fmt: skip
        if status in ("UNAVAILABLE", "CANCELLED", "") or "closed channel" in text:
            with_tls = "" if self._tls is None else f" with TLS (TRITON_GATEWAY_TRITON_TLS): {text}"
            return errors.BackendUnavailable(
                f"no Triton answers at {self._address}{with_tls}", hint="is tritonserver running?"
            )
        return errors.ModelNotReady(text) if loading else errors.BackendRefused(text)

    def _wants_key(self) -> errors.BackendRefused:
        has_key = self._key_file is not None and self._key_file.exists()
        which = f"with the key in {self._key_file}" if has_key else "without a key"
        return errors.BackendRefused(
            f"Triton at {self._address} refuses its model-control API {which}",
            hint="set TRITON_GATEWAY_TRITON_KEY_FILE to the file with the key that Triton was started with",
        )


def _connect(target: str, tls: Tls | None) -> Any:
    """Return a client of Triton's gRPC at ``target``. Raises ``OSError`` for TLS files that cannot be read."""
    options: list[tuple[str, Any]] = list(_CHANNEL)
    if tls is None:
        return tritonclient.grpc.InferenceServerClient(target, channel_args=options)
    if tls.name:
        options += [("grpc.ssl_target_name_override", tls.name), ("grpc.default_authority", tls.name)]
    return tritonclient.grpc.InferenceServerClient(
        target, ssl=True, root_certificates=tls.authority or None, private_key=tls.key or None,
        certificate_chain=tls.certificate or None, channel_args=options,
    )  # fmt: skip


def _first_line(text: str) -> str:
    """Return the first line of Triton's error text that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:500]
