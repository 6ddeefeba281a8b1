"""The stages of both routes: one file each, with the prompt that it uses in ``core/synthesis/prompts``."""
