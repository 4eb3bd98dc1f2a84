"""The checks of ``triton-gateway doctor``: this machine (``local``) or a cluster (``kube``), as a list of findings.

Called by the command ``doctor``. A check changes nothing and never raises: something that cannot be read is a finding
too, with a remedy.
"""
