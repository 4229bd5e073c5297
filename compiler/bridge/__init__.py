"""From PyTorch to the compiler's own graph: capture, generalise, partition. With runtime and thunks the
only stage that knows PyTorch."""
