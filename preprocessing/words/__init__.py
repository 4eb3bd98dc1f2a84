"""The word cache: token ids of words that were seen before, and the rules that say which tokenizers allow it.

``rules`` reads a tokenizer, ``cache`` remembers; called by ``tokenizer`` with every batch. It must never give other
ids than the tokenizer itself would (docs/tokenization.md has the argument), nor hold more words than its bound.
"""
