"""The database file: migrations, appending steps with tokens and messages, and reading them back."""
