"""Interlock: submit durable tasks, run them anywhere."""
