"""What tests and maintainers' tools share."""
