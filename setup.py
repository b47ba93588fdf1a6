"""All metadata is in pyproject.toml; this shim serves tools that want a setup.py."""

from setuptools import setup

setup()
