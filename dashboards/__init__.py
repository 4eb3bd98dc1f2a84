"""Prometheus rules and Grafana boards, generated from Python with metric names from the gateway's catalogue only."""
