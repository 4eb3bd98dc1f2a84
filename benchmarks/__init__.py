"""The benchmarks of this project: one file of ``questions/`` per question.

``python -m benchmarks --help`` lists them, with how long each takes and where its answer is saved. ``shared/`` has
their common code, ``peers/`` and ``autoscale/`` have the parts of two subjects, ``results/`` has saved results. Run
from a checkout; nothing here is packaged or imported by the product.
"""
