"""Who asks, and what they may do: keys, their files, and the one check of them.

Called by both edges before a body is read, and by ``deploy`` (``triton-gateway keys`` writes the files), which sees the
names below. It must never keep a key itself (only its hash), never go by what is no longer in the file, and know no
transport and no endpoint.
"""

from gateway.callers.files import default_pepper
from gateway.callers.keys import (
    BadKeys,
    Key,
    digest,
    key_of,
    name_of,
    new_key,
    new_pepper,
    quotas_of,
    read_file,
    read_pepper,
    seconds,
    written,
)
from gateway.callers.registry_keys import END, KEY, keys_in, records_of
from gateway.callers.rights import ANYTHING, INFER, METADATA

__all__ = [
    "ANYTHING",
    "END",
    "INFER",
    "KEY",
    "METADATA",
    "BadKeys",
    "Key",
    "default_pepper",
    "digest",
    "key_of",
    "keys_in",
    "name_of",
    "new_key",
    "new_pepper",
    "quotas_of",
    "read_file",
    "read_pepper",
    "records_of",
    "seconds",
    "written",
]
