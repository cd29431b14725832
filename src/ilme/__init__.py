"""Make any end-to-end speech recogniser good at a new domain, from text alone."""
