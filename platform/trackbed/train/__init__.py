"""Training: the model, the DeepSpeed engine, the loop, checkpoints, evaluation. One process a rank, by torchrun."""
