"""The gateway: answers requests for Hugging Face models, with NVIDIA Triton behind it, as a ClearML serving Task says.

Owns the data plane and the part of the control plane that reads; ``app`` composes both, ``__main__`` and ``workers``
run it. Called by ``triton-gateway serve``; ``deploy`` and ``dashboards`` may import the modules whose docstrings say
that they are public. It must never write to the serving Task (records beside it are its own), load a model into
Triton, or import anything of ``deploy``.
"""
