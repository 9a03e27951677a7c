"""Conversations: read, masked, prepared into files that ranks share, packed into batches."""
