"""Benchmarks of an idle machine, against its site's own baseline."""
