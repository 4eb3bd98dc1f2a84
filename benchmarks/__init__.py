"""The benchmark of triton-gateway: the same work sent to the gateway and to its peers, in one run on one machine.

Run from a checkout as ``python -m benchmarks``; see ``--help``. Nothing here is packaged or imported by the product.
"""
