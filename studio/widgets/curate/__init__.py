"""Parts of the Curate page."""
