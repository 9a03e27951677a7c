"""Submission: a plan is worked out, shown, and only then sent to a backend. Nothing here imports torch."""
