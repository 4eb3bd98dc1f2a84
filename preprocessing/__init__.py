"""Text to tensors, and a model's tensors to answers. A leaf library on numpy and tokenizers, usable in a notebook.

`processor.TextProcessor.from_folder` serves a model folder without user code; `user_code.UserCode.load` loads a ClearML
`Preprocess` class. Called by the gateway's endpoints and hooks, and by `deploy.bundles`, so that bundles are judged
with the code that serves them. It must never do network I/O or import other packages of ours. This file imports
nothing, so that importing `preprocessing.errors` is cheap.
"""
