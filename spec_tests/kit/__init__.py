"""The kit: what runs the properties on somebody's code and tells them what came out."""
