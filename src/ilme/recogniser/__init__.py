"""A model ready to turn sets of utterances into n-best lists."""
