"""Gateway workers: several processes on one port capture calls, one owner process does everything else."""
