"""The implementation of the registry port on the ClearML API; nothing else in this project imports ``clearml``.

Made once per process, by the gateway's ``app``, model sync or a command. Every wait has a bound. It must never do what
the SDK does silently: retry for minutes, use a configuration from elsewhere, or guess.
"""

from gateway.registry.clearml.registry import ClearMLRegistry

__all__ = ["ClearMLRegistry"]
