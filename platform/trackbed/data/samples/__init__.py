"""Labelled samples, and rows of tokens: read by number, worked on by DALI, given to a rank in order."""
