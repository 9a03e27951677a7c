"""What a run reads and resumes from: DALI, loaders, data sets, checkpoints."""
