"""Which tasks are played: the instances of each stage, their rows, and the task pool of a collection with the choice of its families."""
