"""The file and what is stored in it: database, migrations, steps with tokens and messages, read back whole."""
