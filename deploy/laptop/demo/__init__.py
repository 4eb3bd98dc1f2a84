"""The demo models of a fresh stack.

Called by ``up --demo`` and, in containers, run as programs. It must never change a serving Task that serves anything
else. There are two models. ``minilm`` is for ``up --demo``: a real sentence encoder of 90 MB, whose graph lies here and
whose weights another package brings; its answers are shown. ``words_model`` is for containers (compose, the chart's
values `dev`): a text classifier of a few kilobytes that adds up the weights of words. ``seed`` registers it in an empty
registry.
"""
