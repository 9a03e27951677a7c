"""The installed stack: versions, imports, DeepSpeed's operations, TensorBoard."""
