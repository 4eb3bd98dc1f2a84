"""The second step of a bundle: does a candidate still give the original's answers?

``gate`` decides. It compares texts (``samples``, ``parity``), rows of every length and batches of every size
(``probes``) and weights (``weights``), in the program that runs the candidate in Triton (``engine``). It never changes
a candidate and never looks at speed.
"""
