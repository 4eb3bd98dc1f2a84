"""The registry port's one implementation, on the ClearML API; nothing else in this project imports ``clearml``.

Made once per process by whoever composes one (the gateway's ``app``, model sync, the commands). It must never wait
without a bound, and never do what the SDK does in silence: retry for minutes, follow a foreign configuration, guess.
"""

from gateway.registry.clearml.registry import ClearMLRegistry

__all__ = ["ClearMLRegistry"]
