"""The implementation of the registry port on the ClearML API; nothing else in this project imports ``clearml``.

The gateway's ``app``, model sync and the commands create one per process. Every wait has a bound. It must not do what
the SDK does silently: retry for minutes, use a configuration from elsewhere, or guess.
"""

from gateway.registry.clearml.registry import ClearMLRegistry

__all__ = ["ClearMLRegistry"]
