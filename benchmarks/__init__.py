"""What this project measures, and on what: one file of ``questions/`` for each question.

``python -m benchmarks --help`` lists them, how long each takes and where its answer is kept. ``shared/`` has what they
share, ``peers/`` and ``autoscale/`` what two of them are about, ``results/`` what was saved. Run from a checkout;
nothing here is packaged or imported by the product.
"""
