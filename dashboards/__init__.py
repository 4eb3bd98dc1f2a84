"""Prometheus rules and Grafana boards, generated from Python. Metric names come only from the gateway's catalogue.

Used by ``python -m dashboards``, which writes the files of the Helm chart; ``triton-gateway dashboards`` and ``up``
read them through the links beside this file. It must never name a metric, a label or a status that the gateway
does not have. Nothing here runs during a request.
"""
