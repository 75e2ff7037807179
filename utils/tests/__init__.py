"""Tests of the package: `python -m pytest utils`."""
