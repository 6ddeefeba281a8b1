"""Caches in memory: query results, columns, the facet index; and a thread that fills them."""
