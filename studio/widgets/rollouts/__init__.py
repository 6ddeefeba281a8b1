"""Parts of the Rollouts page."""
