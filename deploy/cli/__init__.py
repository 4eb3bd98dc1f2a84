"""The command line ``triton-gateway`` and the work of its commands.

``main`` finds the command, ``commands/`` parse options and print, and each of the other modules does the work of one
command (``deploying`` for ``deploy``, …). Runs on an operator's machine and as the entry
point of images. It may import all other packages of ``deploy``; none of them may import it. It must never be part of
the request path.
"""
