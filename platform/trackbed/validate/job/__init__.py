"""A job's nodes meet inside their allocation: who is there, are they the same, do they reach each other."""
