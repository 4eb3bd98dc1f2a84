"""The last part: what lies in a bundle beside its graph (``manifest``, ``warm_up``, ``reference``, ``report``).
Called by ``run`` for the candidate that was chosen. Never judges and never chooses.
"""
