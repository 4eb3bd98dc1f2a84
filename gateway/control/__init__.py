"""The control plane: follows the serving Task and prepares the versions that it asks for.

``compile`` (pure) plans, ``assemble`` builds, ``reconcile`` runs the loop. ``app`` starts it; it gives the data plane
one immutable snapshot after another. It owns each version from its configuration until its last lease is returned. It
must never block the event loop (all blocking work has threads of its own), and it must never take a working version
out of service because a new one fails.
"""
