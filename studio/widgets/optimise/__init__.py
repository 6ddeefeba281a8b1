"""Parts of the Optimise page."""
