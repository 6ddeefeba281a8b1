"""Finding and replacing what must not leave: rules, spellings, many trajectories at once."""
