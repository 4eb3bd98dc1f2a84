"""The last step of a bundle: the files next to its graph (``manifest``, ``warm_up``).

Called by ``run`` for the chosen candidate. It never judges and never chooses.
"""
