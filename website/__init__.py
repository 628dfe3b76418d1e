"""Builds the site: pages around the sources, pictures made by the reference, checks of what came out."""
