"""Text in, tensors out; tensors in, answers out. A leaf library on numpy and tokenizers, usable in a notebook.

`processor.TextProcessor.from_folder` serves a model folder without code, `user_code.UserCode.load` loads a ClearML
`Preprocess` class. Nothing is imported here, so that importing `preprocessing.errors` costs nothing.
"""
