"""Text to tensors, and a model's tensors to answers. A leaf library on numpy and tokenizers, usable in a notebook.

`processor.TextProcessor.from_folder` serves a model folder without user code; `user_code.UserCode.load` loads a ClearML
`Preprocess` class. The gateway's endpoints and hooks call it, and so does `deploy.bundles`, so bundles are judged with
the code that serves them. It must not do network I/O or import other packages of ours. This file imports nothing, so
that importing `preprocessing.errors` is cheap.
"""
