"""Callers and their rights: keys, tokens, certificates, quotas, and the one check of them.

Called by both edges before they read a body; ``deploy`` (``triton-gateway keys`` writes the key files) uses ``keys``.
It must never store a key, only its hash, never use a state that its source has replaced, and know no transport and no
endpoint.
"""
