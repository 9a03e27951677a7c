"""Every check there is: each family's own table. To add a check: a measure, a judge, a row in its family, a test."""

from __future__ import annotations

from trackbed.validate import comm, data, host, monitor, stack, storage

# Deadlines are for a cold disk and a busy machine; warm, what runs at a node's start takes seconds.
FAMILIES = (
    host,
    stack,
    data,
    comm,
    monitor,
    storage,
)
CHECKS = tuple(check for family in FAMILIES for check in family.CHECKS)
