"""The catalogue of known mistakes as code: a faulty variant of each, and of what only looks like one."""
