"""Parts of the Batch page."""
