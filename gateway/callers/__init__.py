"""Callers and their rights: keys, tokens, certificates, quotas, and the one check of them.

Called by both edges before they read a body, and by ``deploy`` (``triton-gateway keys`` writes the key files), which
uses the names below. It must never store a key, only its hash, never use a state that its source has replaced, and know
no transport and no endpoint.
"""

from gateway.callers.keys import (
    BadKeys,
    Key,
    default_pepper,
    digest,
    name_of,
    new_key,
    new_pepper,
    read_file,
    read_pepper,
    seconds,
    stored_in,
    written,
)
from gateway.callers.registry_keys import KEY, keys_in, records_of
from gateway.callers.rights import ANYTHING, INFER, METADATA

__all__ = [
    "ANYTHING",
    "INFER",
    "KEY",
    "METADATA",
    "BadKeys",
    "Key",
    "default_pepper",
    "digest",
    "keys_in",
    "name_of",
    "new_key",
    "new_pepper",
    "read_file",
    "read_pepper",
    "records_of",
    "seconds",
    "stored_in",
    "written",
]
