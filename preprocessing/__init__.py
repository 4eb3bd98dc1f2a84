"""Text in, tensors out; tensors in, answers out. A leaf library on numpy and tokenizers, usable in a notebook.

`processor.TextProcessor.from_folder` serves a model folder without code, `user_code.UserCode.load` loads a ClearML
`Preprocess` class. Called by the gateway's endpoints and hooks, and by `deploy.bundles`, which judges with the code
that serves. It must never do network I/O or import anything of ours but itself; nothing is imported here, so that
importing `preprocessing.errors` costs nothing.
"""
