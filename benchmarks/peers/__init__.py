"""The comparison with the gateway's peers: the measured cells, how each system is started and called, the report.

``plan`` has the cells as data, ``systems`` every system (one line in ``SYSTEMS`` adds another), and ``programs/`` the
peers' programs. ``run`` measures, ``report`` shows the result. Used by
``cost_beside_peers``.
"""
