"""One file a question. The file's name is the question's, and ``python -m benchmarks NAME`` asks it.

The first line of its docstring asks the question, ``TAKES`` says how long the answer takes and ``SAVES`` where it is
kept (nothing: it is printed); ``main(argv)`` answers it and returns the exit code. A question imports no other one.
``python -m benchmarks --help`` lists what lies here.
"""
