"""The first part of a bundle's making: the original, checked and read (``source``, ``tokens``), run and exported by
PyTorch (``original``), and turned into what might be faster (``candidates``). Refuses; never judges an answer.
"""
