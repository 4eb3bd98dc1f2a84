"""Where models and serving Tasks live: the port, its ClearML implementation, and what is kept on disk for its absence.

Called by ``control`` and ``app``, and by ``deploy``, which sees the names below and nothing else of it. It must never
be asked on the event loop or in a request, and never decide what is served: it reads and writes what others decide.
"""

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.cache import ArtifactCache, SpecStore
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.ledger import SYSTEM_TAG, Record
from gateway.registry.lineage import lineage_of
from gateway.registry.port import (
    ModelQuery,
    Publication,
    Published,
    Registry,
    RegistryWriter,
    is_id,
    section_text,
)

__all__ = [
    "SYSTEM_TAG",
    "ArtifactCache",
    "ClearMLRegistry",
    "ModelQuery",
    "Publication",
    "Published",
    "Record",
    "Registry",
    "RegistryRefused",
    "RegistryUnavailable",
    "RegistryWriter",
    "SpecStore",
    "is_id",
    "lineage_of",
    "section_text",
]
