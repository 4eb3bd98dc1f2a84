"""``triton-gateway optimize`` for causal language models: graphs with a key/value cache, run token by token.

The same way as the rest of the room, with other parts: called by ``run`` for a task that writes text. A candidate is
judged by its texts in the program that serves it; it must never be taken for its speed alone.
"""
