"""Scaling proven before a cluster: the autoscalers' published algorithms over a model of both tiers; a sizing guide.

``python -m benchmarks signals-of-autoscaling`` compares signals over traffic that hurts, ``size-of-a-deployment`` says
what a load needs and costs. The autoscalers' objects are read from ``k8s/autoscaling``, the capacities from the newest
saved run.
"""
