"""What questions share, once each: load, processes, stacks, texts and models, statistics, saved results.

Nothing here asks a question of its own, and nothing here imports one.
"""
