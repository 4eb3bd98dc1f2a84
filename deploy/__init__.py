"""Everything around the gateway: rooms by where their code runs. ``docs/architecture.md`` has the map of them.

Called by whoever types ``triton-gateway``, by containers' entry points, and by the tests and benchmarks. Of the
gateway it may import the public modules only (a contract in ``pyproject.toml`` names them), and it must never be
imported by it.
"""
