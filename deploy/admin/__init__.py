"""The command line ``triton-gateway`` and what its operator's commands do.

``cli`` finds the command, ``commands/`` parse options and print, the other modules do the work of one command each
(``http_load`` of ``bench``, ``drift_counts`` of ``drift``, …). Runs where an operator or a container's entry point
types it, so it may use every room of ``deploy``; no room may use it, and it must never be on a request's way.
"""
