"""Code that several questions share: load, processes, stacks, texts and models, statistics, saved results.

Nothing here is a question, and nothing here imports one.
"""
