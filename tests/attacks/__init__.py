"""Inputs that are damaged, odd or hostile: each ends in one line that says what to do, and costs no other input."""
