"""Change the temperature: the same scores, from nearly greedy to nearly even."""

import numpy as np

from reference.numpy import next_token_distribution, sample

words = ["the", "a", "cat", "dog", "sat", "mat"]
logits = np.array([2.5, 2.0, 1.0, 0.8, -0.5, -1.0])
rng = np.random.default_rng()

for temperature in (0.1, 0.5, 0.8, 1.0, 2.0, 10.0):
    p = next_token_distribution(logits, temperature=temperature)
    entropy = -(p[p > 0] * np.log2(p[p > 0])).sum()
    drawn = [words[int(sample(p, np.asarray(rng.random())))] for _ in range(8)]
    print(f"temperature {temperature:4}: entropy {entropy:.2f} of {np.log2(len(words)):.2f} bits")
    print("   ", "  ".join(f"{word} {share:.3f}" for word, share in zip(words, p)))
    print("    drawn:", " ".join(drawn))
