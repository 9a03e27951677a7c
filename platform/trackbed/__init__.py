"""Trackbed: a training platform that tells you before the GPUs are spent and loses nothing when they fail."""

__version__ = "0.1.0"
