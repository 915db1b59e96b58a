"""Slipstream: speculative decoding as a distributed service."""

if __name__ != "slipstream":
    raise ImportError("import slipstream; services/ is only the folder it lives in")

__version__ = "0.1.0"
