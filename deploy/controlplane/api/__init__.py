"""ClearML's services, one module each. Every module has one class whose `endpoints()` is its whole surface,
called by ``app`` with a call that was checked. It must never know HTTP, nor write past the store.
"""
