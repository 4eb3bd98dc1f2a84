"""``triton-gateway optimize`` for causal language models: graphs with a key/value cache, run token by token.

The steps are those of the rest of ``deploy/bundles``, with other parts. Called by ``run`` for a task that generates
text. A candidate is judged by its texts, in the program that serves it; it is never chosen for speed alone.
"""
