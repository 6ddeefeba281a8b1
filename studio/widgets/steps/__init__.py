"""Contents of steps: messages and the text of tokens. Used by every page that shows a step."""
