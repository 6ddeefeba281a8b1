"""What is kept in memory beside the file: answers, columns, the facet index; and reading ahead."""
