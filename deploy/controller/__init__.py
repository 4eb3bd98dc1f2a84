"""The controller: the only program that writes to the registry by itself. ``triton-gateway controller`` runs it.

``election`` decides which of several controllers works, ``controller`` is its loop, and ``run`` composes its duties:
``auto_update`` gives numbers to new models, ``defaults`` records default versions, ``rollouts`` carries out what people
ask for from the first step to the end, ``pruning`` removes records that nothing needs, ``history`` records who changed
what, and ``telemetry`` shows versions on ClearML's pages. It serves no request and changes no Triton; while it is away,
everything is served on and nothing changes by itself. It must never act on a serving Task that it could not read.
"""
