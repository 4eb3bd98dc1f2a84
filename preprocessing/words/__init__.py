"""The word cache: token ids of words that occurred before, and the rules for which tokenizers allow it.

``rules`` examines a tokenizer, ``cache`` stores words. Called by ``tokenizer`` with every batch. It must never return
other ids than the tokenizer (docs/architecture.md#one-request has the argument), and never exceed its bound.
"""
