"""The host, the container and the folders: what a process here may use."""
