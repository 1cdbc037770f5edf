"""Benchmarks of this project's parts, which an installation has not: ``python -m benchmarks.kernels``, ``.network``, ``.plan``.

They are called from a checkout, and take settings as ``sargnn`` does; ``--help`` lists them.
"""
