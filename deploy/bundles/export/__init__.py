"""The first step of a bundle: checks the original, exports it, and makes candidates that might be faster.

``source`` and ``tokens`` check and read it, ``original`` runs and exports it with PyTorch, ``candidates`` makes the
graphs. It refuses models, but never judges an answer.
"""
