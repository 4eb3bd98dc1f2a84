"""Prometheus rules and Grafana boards, generated from Python with metric names from the gateway's catalogue only.

``python -m dashboards`` writes the files beside it and those of the Helm chart, which kustomize reads too;
``triton-gateway dashboards`` and ``up`` read them. It must never name a metric, a label or a status that the gateway
does not have, and nothing here runs beside a request.
"""
