"""Games of our own as tasks: fifteen HTML5 games with an explicit state, verifiers in the page, and oracles that prove them solvable."""
