"""The gateway beside its peers: which cells are measured, how each system is started and asked, what a run says.

``plan`` has the cells as data, ``systems`` every system (one line in ``SYSTEMS`` for another), ``programs/`` what the
peers run; ``run`` measures, ``analysis`` judges, ``report`` and ``plots`` show it. Asked by ``cost_beside_peers``.
"""
