"""How strong the suite is: every small change of `reference.numpy` that changes what it computes must be noticed."""
