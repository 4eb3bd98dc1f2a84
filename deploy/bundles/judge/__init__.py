"""The second part: whether a candidate still answers as the original does (``gate``), shown by texts (``samples``,
``parity``), by rows of every length and batches of every size (``probes``) and by its weights (``weights``), in the
program that runs it in Triton (``engine``). Never changes a candidate, and never looks at speed.
"""
