"""Scaling proven before a cluster: the autoscalers' published algorithms over a model of both tiers; a sizing guide.

``python -m benchmarks.autoscale simulate`` compares signals over traffic that hurts; ``size`` says what a load needs
and costs. The autoscalers' objects are read from ``k8s/autoscaling``, the capacities from ``benchmarks/results``.
"""
