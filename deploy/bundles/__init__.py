"""Turns a Hugging Face model into a bundle that Triton can serve and that provably answers like the model.

It owns all steps: ``export`` (the original in PyTorch, and the graphs made of it), ``judge`` (do they still give the
same answers?), ``speed`` (which is fastest here?), ``pack`` (the files of a bundle); ``run`` performs them. It runs
where a model is prepared, a laptop or a CI job, called by ``triton-gateway optimize``; the bundle then goes to ClearML
like any model. Only this package imports torch, transformers, OpenVINO's tools or onnx's quantisers (extra
``bundles``), inside the functions that use them. It never runs next to a Triton or in the gateway and never answers a
request: its results are judged by the same ``preprocessing`` and the same programs (``deploy/sync/runtime``) that serve
them. Other packages use ``run``, ``options``, ``serving`` and ``register``; the rest is private.
"""
