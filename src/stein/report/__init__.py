"""Figures and pages from numbers: nothing is trained, read from a run or computed here.

Pages (``page``, ``charts``, ``style``) need no jax.
"""
