"""What a fresh stack serves when nobody has a model at hand, and who asks it.

Called by ``up --demo`` and, in containers, as programs; it must never touch a serving Task that serves anything else.
Two models, because the two places differ. ``minilm`` is for ``up --demo``: a real sentence encoder of 90 MB, made a
graph on the machine (``encoder``, ``bert_graph``), its answers shown to the person who waits. ``words`` is for
containers (compose, `dev` overlay): a text classifier of a few kilobytes that adds up the weight of words, carried
ready-made in ``words_model/``; ``seed`` registers it in an empty registry, ``traffic`` sends requests so that the
boards move.
"""
