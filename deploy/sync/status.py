"""When model sync reports what its Triton has, beside the serving Task.

Gateways and the controller read the report (``gateway.registry.reports``): it is sent on change, at most every ten
seconds, every minute while a model fails, and else hourly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from deploy.tools.errors import GatewayError
from gateway import registry

log = logging.getLogger("triton_gateway.sync")

LEAST_S: Final = 10.0
FAILING_S: Final = 60.0
"""The report of a model that fails is repeated: an old one does not count."""
MOST_S: Final = 3600.0

Told = Sequence[registry.reports.ModelReport]


class Reporter:
    """Reports with ``send``. ``clock``: seconds. One thread at a time.

    A registry that is away is asked again ten seconds later.
    """

    def __init__(self, send: Callable[[Told], None], *, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._sent: Told | None = None
        self._tried_at = -math.inf

    def is_due(self, told: Told) -> bool:
        """Return whether ``told`` should be reported now."""
        since = self._clock() - self._tried_at
        most = FAILING_S if any(one.reason for one in told) else MOST_S
        return since >= most or (since >= LEAST_S and told != self._sent)

    def write(self, told: Told) -> None:
        """Report ``told``. Never raises for a registry that refuses or is away."""
        self._tried_at = self._clock()
        try:
            self._send(told)
            self._sent = told
        except GatewayError as error:
            log.warning("the state of this Triton cannot be reported: %s", error.message)
