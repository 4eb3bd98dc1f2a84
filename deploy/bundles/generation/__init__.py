"""``triton-gateway optimize`` for causal language models: graphs with a key/value cache, run token by token."""
