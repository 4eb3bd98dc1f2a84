"""ClearML's services, one module each.

Every module has a table `CALLS`, its public interface. Called by ``app`` with a checked call. These modules know
nothing about HTTP, and never write except through the store.
"""
