"""`ilme serve`: domains as a service that OpenAI's clients can call, and a page."""
