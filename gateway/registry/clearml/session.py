"""A session with the ClearML API through the ``clearml`` SDK, with time limits that the SDK does not have.

By default the SDK silently retries an unreachable server 240 times and waits for ever on a 503, which would look like a
hang. Credentials, tokens, ``clearml.conf`` and ``CLEARML_*`` variables are read as in every ClearML program. Only the
other files of this folder call it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import requests

from gateway.errors import RegistryRefused, RegistryUnavailable

CONNECT_S: Final = 5.0
READ_S: Final = 20.0


class Api:
    """A session that is opened by the first call. Safe to call from several threads at once.

    Every method raises ``RegistryUnavailable`` if the server does not answer, and ``RegistryRefused`` if it refuses.
    """

    def __init__(self) -> None:
        self._session: Any = None
        self._lock = threading.Lock()

    @property
    def session(self) -> Any:
        """The SDK's own session: addresses of the servers, headers, its version."""
        with self._lock:
            if self._session is None:
                self._session = _open_session()
            return self._session

    def call(
        self, service: str, action: str, body: Mapping[str, Any], *, version: str = "2.23"
    ) -> dict[str, Any]:  # fmt: skip
        """Send one API call, as that ``version`` of the API has it, and return its ``data``.

        Raises ``RegistryUnavailable`` and ``RegistryRefused`` as every method of the port does.
        """
        session = self.session
        with _translated():
            reply = session.send_request(service=service, action=action, version=version, method="get", json=dict(body))
        return self._checked(reply, f"{service}.{action}")

    def report(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events (scalars, log lines) to the Tasks they name, as the SDK's own reporting does.

        Raises ``RegistryUnavailable`` and ``RegistryRefused``.
        """
        session = self.session
        with _translated():
            replies = session.send_request_batch(
                service="events", action="add_batch", version="2.23", json=[dict(event) for event in events]
            )
        for reply in replies or ():
            self._checked(reply, "events.add_batch")

    def _checked(self, reply: Any, what: str) -> dict[str, Any]:
        session = self.session
        try:
            answer = reply.json()
            meta, data = answer["meta"], answer["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise RegistryUnavailable(
                f"{session.host} does not answer as a ClearML API server (HTTP {reply.status_code})",
                hint="check CLEARML_API_HOST: it must be the API server, not the web or file server",
            ) from error
        if reply.status_code == requests.codes.ok:
            result: dict[str, Any] = data
            return result
        message = f"{what}: {meta.get('result_msg')}"
        if reply.status_code >= 500:
            raise RegistryUnavailable(message)
        raise RegistryRefused(message)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate the errors of the SDK's session, whose own types have no common base."""
    try:
        yield
    except Exception as error:
        own = ("LoginError", "ValueError", "ConfigurationError")
        if isinstance(error, requests.RequestException | OSError) or type(error).__name__ in own:
            raise _translate(error) from error
        raise


def _open_session() -> Any:
    # Imported here, because the import takes a second and reads configuration. A gateway that starts from its last-good
    # state must not depend on that.
    from clearml.backend_api.session import Session
    from clearml.backend_api.session.defs import ENV_OFFLINE_MODE, MissingConfigError
    from clearml.config import ConfigWrapper

    class BoundedSession(Session):  # type: ignore[misc]
        _session_timeout = (CONNECT_S, READ_S)
        _session_initial_timeout = (CONNECT_S, READ_S)

    if ENV_OFFLINE_MODE.get():
        raise RegistryRefused(
            "CLEARML_OFFLINE_MODE is set, so the ClearML SDK calls no server", hint="unset CLEARML_OFFLINE_MODE"
        )
    try:
        with _translated():
            _read_configuration(ConfigWrapper)
            return BoundedSession(
                http_retries_config={"total": 1, "connect": 1, "read": 1, "redirect": 3, "backoff_factor": 0.2},
            )
    except MissingConfigError as error:
        raise RegistryRefused(
            "no ClearML credentials found",
            hint="set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or run `clearml-init`; for "
            "the server of a `triton-gateway up`, run this in its folder",
        ) from error


@functools.cache
def _read_configuration(wrapper: Any) -> None:
    # Cached: otherwise each attempt of a gateway without its registry would parse all files again, which takes a third
    # of a second of CPU. Without the override the SDK repeats a 503 for ever.
    wrapper.set_overrides({"api": {"http": {"wait_on_maintenance_forever": False}}})


def _translate(error: BaseException) -> RegistryUnavailable | RegistryRefused:
    text = reason_of(error)
    if "error 401" in text or "error 403" in text:
        return RegistryRefused(
            f"ClearML refuses the credentials: {text}",
            hint="check CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY",
        )
    return RegistryUnavailable(
        f"the ClearML API does not answer: {text}", hint="check CLEARML_API_HOST and that the server is up"
    )


def reason_of(error: BaseException) -> str:
    """Return the reason of an error in a few words, without the wrapping of libraries."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    # requests and urllib3 wrap the operating system's message several times; people need only that message.
    system = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
    address = re.search(r"host='([^']+)', port=(\d+)", text)
    if system and address:
        return f"{address[1]}:{address[2]}: {system[1]}"
    return text[:300]
