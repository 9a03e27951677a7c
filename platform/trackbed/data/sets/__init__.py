"""Data sets that are made on this machine, from packages that are installed or fetched."""
