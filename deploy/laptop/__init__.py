"""``triton-gateway up``: registry, Triton, model sync and gateway on one machine, for development and first trials.

Owns their processes (``supervisor``), the order in which they start (``stack``), the folder they write to
(``state_dir``) and the models of the demo (``demo``). Runs on a developer's machine; ``demo.seed`` also
runs in containers of the compose stack and of the chart's values `dev`. Called by the command line
(``deploy/cli``). It must never answer a request itself, change the registry other than through the stock CLI, or
leave a process behind.
"""
