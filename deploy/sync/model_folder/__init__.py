"""Builds the content of one model's folder in Triton's repository: files, config.pbtxt, and the program that runs it.

``build`` combines the model's files, its endpoint and this machine; everything else is pure. ``reconcile`` calls it;
``deploy/bundles`` also calls ``execution``, because it writes what is read here. It never guesses between
two candidates and writes no files: ``repository`` does that.
"""
