"""Parts of the Datasets page."""
