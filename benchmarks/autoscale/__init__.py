"""Autoscaling on real controllers, with what pods measure played; a sizing guide.

``python -m benchmarks signals-of-autoscaling`` puts loads that hurt upon releases of the chart on a real Kubernetes,
``size-of-a-deployment`` says what a load needs and costs. Capacities are those of the newest saved run.
"""
