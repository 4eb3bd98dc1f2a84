"""The last part: what lies in a bundle beside its graph (``manifest``, ``warm_up``, ``reference``, ``report``).
Never judges and never chooses.
"""
