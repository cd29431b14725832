"""The embedded default: small models, language models, weights and recordings that ship with the package."""
