"""What makes a fresh stack answer: a model of a few kilobytes, the serving Task that serves it, and traffic for it.

For the compose stack and the `dev` overlay, where nobody has a model at hand; a system with models of its own needs
none of it. The model is real (tokenizer, ONNX graph, reference distributions) and small: it weighs words.
"""
