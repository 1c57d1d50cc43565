"""Backends: a loaded model on one kind of device, behind the protocol of `base.py`."""
