"""Judges what the gateways have counted: drift from references, versions beside each other, accuracy from labels.

Called by the controller, as one of its duties, and by `drift report`. It never asks a gateway for anything but its
counts, and changes nothing that the serving Task says.
"""
