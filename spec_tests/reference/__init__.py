"""What only our own reference promises: modules, tutorials, data, checkpoints, commands."""
