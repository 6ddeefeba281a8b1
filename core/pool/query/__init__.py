"""Views compiled to SQL, and what is read with them: pages, counts, facets, histograms, text search."""
