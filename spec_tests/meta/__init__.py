"""Tests of the tests: a fault for every property, twins alike, the kit's own behaviour."""
