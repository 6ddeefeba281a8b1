"""Compiles views to SQL, and reads with them: pages, counts, facets, histograms, text search."""
