"""The sampler: from a row's logits to its next id, as a fixed list of processors, each owning its entries of the state."""
