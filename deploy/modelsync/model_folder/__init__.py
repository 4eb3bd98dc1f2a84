"""What the folder of one model in Triton's repository holds: which files, config.pbtxt, the program that runs it.

``build`` puts it together of what a model's files, its endpoint and this machine say; everything else is pure. Called
by ``reconcile``; ``execution`` and ``cores`` also by ``deploy/bundles``, which write what is read here. It must never
guess between two candidates, nor write anything: ``repository`` does that.
"""
