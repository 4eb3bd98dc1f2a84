"""One file per question. The file's name is the question's name, and ``python -m benchmarks NAME`` runs it.

The first line of a file's docstring is the question. ``TAKES`` says how long the answer takes, and ``SAVES`` where it
is saved (empty: it is only printed). ``main(argv)`` answers it and returns the exit code. A question never imports
another one. ``python -m benchmarks --help`` lists all of them.
"""
