"""Where cells run: on this machine, as jobs of Slurm, or as tasks of Ray."""
