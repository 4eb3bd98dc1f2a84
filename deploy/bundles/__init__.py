"""From a Hugging Face model to a bundle that Triton can serve and that provably answers as the model does.

Owns the whole way: ``export`` (the original in PyTorch and the graphs made of it), ``judge`` (whether they still
answer the same), ``speed`` (which one is fastest here), ``pack`` (the files of a bundle); ``generation`` is the same
way for causal language models, ``run`` goes it. Runs where somebody makes a model ready, a laptop or a CI job, called
by ``triton-gateway optimize``; the bundle then goes to ClearML like any model. It is the only place that imports
torch, transformers, OpenVINO's tools or onnx's quantisers (extra ``bundles``), and imports them inside the functions
that run them. Never runs beside a Triton or in the gateway, and never answers a request: what it makes is judged by
the same ``preprocessing`` and the same programs (``deploy/modelsync/runtime``) that serve it.

Others use ``run``, ``options``, ``serving`` and ``register``; the rest is this room's own.
"""
