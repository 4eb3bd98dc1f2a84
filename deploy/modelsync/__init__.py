"""Model sync: keeps one Triton at what the serving Task wants. Runs beside that Triton, one per model repository.

``run`` composes it, ``reconcile`` is its loop, ``follow`` says what is wanted, ``plan`` what to do about it;
``model_folder`` and ``repository`` make what Triton loads, ``client`` tells Triton so, ``auto_update`` gives versions
to new models. Called by ``triton-gateway sync``, and so by ``up`` and by the container beside Triton (``doctor`` asks
its ``client`` and ``doors``). Of the gateway it may import what is public: the registry port, the spec, errors,
settings, version numbers, and what both say through Triton (its key, verdicts). It must never unload what a gateway
may still call, never act on a desired state that it could not read, and never need a web framework, torch or
transformers.
"""
