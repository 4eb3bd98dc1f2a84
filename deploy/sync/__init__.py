"""Model sync: makes one Triton hold the models that the serving Task wants. Runs next to that Triton.

There is one model sync per model repository. ``run`` composes it and ``reconcile`` is its loop; ``follow`` reads what
is wanted, and ``plan`` decides the steps. ``model_folder`` and ``repository`` write what Triton loads, ``client`` calls
Triton, ``triton-gateway sync`` calls it, and so do
``up`` and the container next to Triton; ``doctor`` uses ``client`` and ``open_addresses``. Of the gateway it may import
only public modules: the registry port, the spec, errors, settings, and what is public of ``gateway.triton``. It never
unloads a model that a gateway may still call, never acts on a desired state that it could not read, and needs no web
framework, torch or transformers.
"""
