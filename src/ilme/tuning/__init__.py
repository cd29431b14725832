"""The tuner: fusion weights on a dev set, in few decodes."""
