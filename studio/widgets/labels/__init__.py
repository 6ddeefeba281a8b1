"""Labels: the panel that writes them, the review queue, agreement of reviewers. Used by Inspect and Curate."""
