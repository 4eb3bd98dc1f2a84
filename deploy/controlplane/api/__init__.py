"""ClearML's services, one module each. Every module has one class whose `endpoints()` is its whole surface."""
