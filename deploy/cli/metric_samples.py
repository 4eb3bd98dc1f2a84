"""Reads the metrics of one gateway as samples, for ``drift``."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from deploy.tools.errors import DeployError
from deploy.tools.http_client import KEY, shown

Key = tuple[str, str, str]
"""Endpoint, version, variable."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def key(self) -> Key:
        """Endpoint, version, variable."""
        return (self.labels.get("endpoint", ""), self.labels.get("version", ""), self.labels.get("variable", ""))


def from_gateway(url: str) -> list[Sample]:
    """Return the metrics of the gateway at ``url``, counted since it started. Raises ``DeployError``."""
    text = get(f"{url.rstrip('/')}/metrics?detail=full", os.environ.get(KEY, ""))
    try:
        families = text_string_to_metric_families(text.decode())
        return [Sample(one.name, one.labels, one.value) for family in families for one in family.samples]
    except ValueError as error:
        raise DeployError(f"{url}/metrics is not Prometheus' text format: {error}") from error


def get(url: str, key: str = "") -> bytes:
    """GET ``url``, with a gateway's ``key`` if there is one, and without a proxy.

    Raises ``DeployError`` for anything but an answer of 200.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    if not url.startswith(("http://", "https://")):
        raise DeployError(f"{url} is not an http(s) address", hint="write http://HOST:PORT")
    request = urllib.request.Request(url, headers=shown(key))  # noqa: S310 - the scheme was checked
    try:
        with opener.open(request, timeout=30) as reply:
            content: bytes = reply.read()
            return content
    except urllib.error.HTTPError as error:
        with error:
            raise DeployError(f"{url.partition('?')[0]} answered {error.code}") from error
    except OSError as error:
        why = getattr(error, "reason", error)
        hint = f"{getattr(why, 'strerror', None) or why}: check that it runs, and that the address is right"
        raise DeployError(f"nothing answers at {url.partition('?')[0]}", hint=hint) from error
