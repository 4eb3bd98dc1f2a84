"""Prometheus rules and Grafana boards, generated from Python with metric names from the gateway's catalogue only.

Called by ``python -m dashboards``, by the chart's renderer, and by ``triton-gateway dashboards``, which carries them.
It must never name a metric, a label or a status that the gateway does not have, and nothing here runs beside a
request.
"""
