"""Users' code in processes of its own: ``Preprocess`` classes, custom engines and the Python frameworks.

Owns those processes and the socket to each; called by ``handlers/hook``, and by ``trial`` at the keyboard. Nothing
that can execute may ever cross the socket, a process may never outlive its gateway, and one that hangs is replaced,
not waited for.
"""
