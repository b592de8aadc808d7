"""The value model: the critic and its checkpoint, its pretraining and the fit that this came to, and when it may steer (learner)."""
