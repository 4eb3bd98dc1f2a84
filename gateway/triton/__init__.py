"""What runs tensors: the port, and the adapter for Triton over gRPC and HTTP, with all its replicas.

Called by ``handlers`` and ``control``; ``key``, ``tls`` and ``addresses`` are public: ``deploy`` starts and fills a
Triton. It must never load or unload a model, know what a task means, or take what a caller does for a server's fault.
"""

from gateway.triton import addresses, key, tls

__all__ = ["addresses", "key", "tls"]
