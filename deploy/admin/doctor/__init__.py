"""What ``triton-gateway doctor`` looks at: this machine (``local``) or a cluster (``kube``), as a list of findings.

Called by the command ``doctor``. Looking never changes anything and never raises: a thing that cannot be seen is a
finding, with what to do about it.
"""
