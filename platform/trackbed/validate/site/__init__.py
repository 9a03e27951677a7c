"""What a site expects of a node, what its fleet shows, and what Slurm is told."""
