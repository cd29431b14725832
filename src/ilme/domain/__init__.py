"""A model made good at a domain: adapted from text, kept in a folder, used on audio."""
