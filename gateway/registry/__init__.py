"""The registry, where models and serving Tasks are stored: the port, its ClearML implementation, and copies on disk.

Called by ``control``, ``app`` and ``deploy``, which uses only the names below. It must never be called on the event
loop or in a request. It reads and writes; it never decides what is served.
"""

from gateway.registry import reports
from gateway.registry.cache import ArtifactCache, Saved, SpecStore
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.clearml.ledger import SYSTEM_TAG
from gateway.registry.ledger import Kind, Ledger, Record, Records
from gateway.registry.port import ModelQuery, Registry, RegistryWriter, Upload, is_id
from gateway.registry.unpack import unpack as unpack_archive

__all__ = [
    "SYSTEM_TAG",
    "ArtifactCache",
    "ClearMLRegistry",
    "Kind",
    "Ledger",
    "ModelQuery",
    "Record",
    "Records",
    "Registry",
    "RegistryWriter",
    "Saved",
    "SpecStore",
    "Upload",
    "is_id",
    "reports",
    "unpack_archive",
]
